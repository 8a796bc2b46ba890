"""Print the results of `cache_pixels.py` as tables.

    python benchmarks/cache_pixels_table.py result.json            Markdown

Table 1: difference of crops of copies from crops of the originals, in grey levels. Table 2: size of
the copies. Table 3: difference of other crops of the originals.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from report import table

__all__ = ["tables"]

Results = dict[str, Any]


def _in_order(figures: list[Results], name: str) -> list[Any]:
    """Distinct values of a field, in the order they were measured."""
    return list(dict.fromkeys(one[name] for one in figures))


def _quality(value: int | None) -> str:
    return "raw" if value is None else f"q{value}"


def _copies(copies: list[Results], markdown: bool) -> str:
    """One row per image size and resolution; empty if feedline does not read it."""
    results = {(f["row_px"], f["level_px"], f["crop"], f["quality"]): f["mean"] for f in copies}
    columns = [
        (crop, quality)
        for crop in _in_order(copies, "crop")
        for quality in _in_order(copies, "quality")
    ]
    rows: list[list[object]] = []
    for size, level in sorted({key[:2] for key in results}):
        means = [results.get((size, level, *column)) for column in columns]
        rows.append([size, level, *("" if mean is None else f"{mean:.2f}" for mean in means)])
    headers = [f"{crop}, {_quality(quality)}" for crop, quality in columns]
    return table(rows, ["rows px", "copies px", *headers], markdown=markdown)


def _sizes(copies: list[Results], markdown: bool) -> str:
    """One row per resolution: kilobytes per image."""
    results = {(f["level_px"], f["quality"]): f["bytes_an_image"] / 1000 for f in copies}
    counts = {f["level_px"]: f["photographs"] for f in copies}
    qualities = _in_order(copies, "quality")
    rows = [
        [level, photographs, *(f"{results[level, quality]:.1f}" for quality in qualities)]
        for level, photographs in sorted(counts.items())
    ]
    headers = [f"{_quality(quality)}, kB" for quality in qualities]
    return table(rows, ["copies px", "photographs", *headers], markdown=markdown)


def _yardsticks(yardsticks: list[Results], markdown: bool) -> str:
    """One row per alternative crop of the originals."""
    results = {(f["way"], f["crop"], f["row_px"]): f["mean"] for f in yardsticks}
    columns = list(dict.fromkeys((f["crop"], f["row_px"]) for f in yardsticks))
    rows: list[list[object]] = []
    for way in _in_order(yardsticks, "way"):
        means = [results.get((way, *column)) for column in columns]
        rows.append([way, *("" if mean is None else f"{mean:.2f}" for mean in means)])
    headers = [f"{crop} @{size}" for crop, size in columns]
    return table(rows, ["originals, otherwise", *headers], markdown=markdown)


def tables(results: Results, *, markdown: bool = False) -> str:
    """All three tables."""
    return "\n\n".join(
        (
            _copies(results["copies"], markdown),
            _sizes(results["copies"], markdown),
            _yardsticks(results["yardsticks"], markdown),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path, help="results file of cache_pixels.py")
    options = parser.parse_args()
    print(tables(json.loads(options.result.read_text()), markdown=True))


if __name__ == "__main__":
    main()
