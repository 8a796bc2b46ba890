"""Shared by the benchmarks: facts about the machine, package versions, results files and tables."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from feedline.machine import cpu_model
from feedline.system import usable_cores

__all__ = [
    "describe_processor",
    "machine",
    "processor",
    "resume_results",
    "save",
    "spread",
    "table",
    "versions",
]

_CPUINFO = Path("/proc/cpuinfo")
_VECTOR_SETS = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f", "avx512dq", "avx512bw", "avx512vl"),
    "VBMI": ("avx512_vbmi", "avx512vbmi"),
    "VNNI": ("avx512_vnni", "avx512vnni"),
    "NEON": ("asimd", "neon"),
}
"""Vector sets by name, with the kernel's flags: all of AVX-512, and any of the others."""


def processor(cpuinfo: Path = _CPUINFO) -> dict[str, str | list[str]]:
    """Model, generation and vector sets of the processor; the last two are from Linux alone.

    A virtual machine may report the same model name for several generations.
    """
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    facts = dict[str, str]()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    flags = {*facts.get("flags", "").split(), *facts.get("Features", "").split()}
    names = ("vendor_id", "cpu family", "model")
    return {
        "cpu_model": cpu_model(),
        "cpu_generation": ", ".join(f"{name} {facts[name]}" for name in names if name in facts),
        "vector_sets": [
            name
            for name, any_of in _VECTOR_SETS.items()
            if (all if name == "AVX-512" else any)(flag in flags for flag in any_of)
        ],
    }


def describe_processor(machine: Mapping[str, Any]) -> str:
    """Processor of a result: "AMD EPYC (AVX2, AVX-512)"; older results have no vector sets."""
    if "cpu_model" not in machine:
        return "not recorded"
    sets = ", ".join(machine.get("vector_sets") or ["vector sets not recorded"])
    return f"{machine['cpu_model']} ({sets})"


def machine() -> dict[str, str | int | float | list[str]]:
    """Facts about the machine that results depend on; memory is the total, in GiB."""
    return {
        **processor(),
        "usable_cores": usable_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "platform": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of the installed packages among `names`."""
    results = {}
    for name in names:
        try:
            results[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return results


def save(results: Mapping[str, object], path: Path | None) -> None:
    """Write results as JSON, replacing the file; do nothing without a path."""
    if path is not None:
        path.write_text(json.dumps(results, indent=1) + "\n")


def resume_results(
    path: Path | None, settings: Mapping[str, object], packages: Sequence[str]
) -> dict[str, Any]:
    """Load a results file of runs, or start a new one; exit if its settings differ."""
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
        # As JSON returns them: tuples as lists.
        if results[part] != json.loads(json.dumps(fresh[part])):
            raise SystemExit(f"{path} has runs with other {part}; choose another file")
    return results


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Median and range: "1.020 (0.991 to 1.034)"; "-" if empty."""
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def table(
    rows: Sequence[Sequence[object]], headers: Sequence[str], *, markdown: bool = False
) -> str:
    """Table as text, or as Markdown; columns of numbers and ranges are right-aligned."""
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
