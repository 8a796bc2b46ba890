"""What every benchmark says beside its figures: the machine, versions; and how figures are set."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from feedline.system import cpu_model, usable_cores

__all__ = ["begun", "machine", "save", "spread", "table", "versions"]


def machine() -> dict[str, str | int | float]:
    """The machine's facts that figures depend on; memory is all that it has, in GiB."""
    return {
        "cpu_model": cpu_model(),
        "usable_cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "platform": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def versions(names: Sequence[str]) -> dict[str, str]:
    """The versions of those of the packages that are installed."""
    results = {}
    for name in names:
        try:
            results[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return results


def save(results: Mapping[str, object], path: Path | None) -> None:
    """Write figures as JSON, replacing those of before; nowhere where there is no path."""
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n")


def begun(
    path: Path | None, settings: Mapping[str, object], packages: Sequence[str]
) -> dict[str, Any]:
    """What a file of runs holds already, or a beginning; refuses one of other settings."""
    fresh: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(packages),
        "settings": settings,
        "runs": [],
    }
    if path is None or not path.exists():
        return fresh
    results: dict[str, Any] = json.loads(path.read_text())
    for part in ("versions", "settings"):
        # As JSON gives them back: tuples as lists.
        if results[part] != json.loads(json.dumps(fresh[part])):
            raise SystemExit(f"{path} holds runs of other {part}; name another file")
    return results


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median and range: "1.020 (0.991 to 1.034)"; "-" of nothing."""
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(
    rows: Sequence[Sequence[object]], headers: Sequence[str], *, markdown: bool = False
) -> str:
    """A table as text, or as Markdown; columns of numbers, and of ranges, to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    columns = [[row[k] for row in cells] for k in range(len(headers))]
    right = [all(map(_numeric, column)) for column in columns]
    if markdown:
        rule = ["---:" if numeric else "---" for numeric in right]
        return "\n".join(f"| {' | '.join(row)} |" for row in [list(headers), rule, *cells])
    widths = [max(map(len, (head, *column))) for head, column in zip(headers, columns, strict=True)]

    def line(row: Sequence[str]) -> str:
        parts = zip(row, widths, right, strict=True)
        set_out = [cell.rjust(w) if numeric else cell.ljust(w) for cell, w, numeric in parts]
        return "  ".join(set_out).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, cells)])


def _numeric(cell: str) -> bool:
    digits = cell.lstrip("-")
    return not digits or digits[0].isdigit()
