"""What `cache_pixels.py` found, as tables.

    python benchmarks/cache_pixels_table.py result.json            Markdown

The first says how many grey levels crops of copies differ from the same crops of the originals, the
second how large the copies are, the third what other ways of making a crop of the originals do.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from report import table

__all__ = ["tables"]

Found = dict[str, Any]


def _in_order(figures: list[Found], name: str) -> list[Any]:
    """The values of one name, in the order in which they were measured."""
    return list(dict.fromkeys(one[name] for one in figures))


def _quality(value: int | None) -> str:
    return "raw" if value is None else f"q{value}"


def _copies(copies: list[Found], markdown: bool) -> str:
    """A row for each size of rows and level; empty where feedline does not read that level."""
    found = {(f["row_px"], f["level_px"], f["crop"], f["quality"]): f["mean"] for f in copies}
    columns = [
        (crop, quality)
        for crop in _in_order(copies, "crop")
        for quality in _in_order(copies, "quality")
    ]
    rows: list[list[object]] = []
    for size, level in sorted({key[:2] for key in found}):
        means = [found.get((size, level, *column)) for column in columns]
        rows.append([size, level, *("" if mean is None else f"{mean:.2f}" for mean in means)])
    headers = [f"{crop}, {_quality(quality)}" for crop, quality in columns]
    return table(rows, ["rows px", "copies px", *headers], markdown=markdown)


def _sizes(copies: list[Found], markdown: bool) -> str:
    """A row for each level: kilobytes of an image."""
    found = {(f["level_px"], f["quality"]): f["bytes_an_image"] / 1000 for f in copies}
    counts = {f["level_px"]: f["photographs"] for f in copies}
    qualities = _in_order(copies, "quality")
    rows = [
        [level, photographs, *(f"{found[level, quality]:.1f}" for quality in qualities)]
        for level, photographs in sorted(counts.items())
    ]
    headers = [f"{_quality(quality)}, kB" for quality in qualities]
    return table(rows, ["copies px", "photographs", *headers], markdown=markdown)


def _yardsticks(yardsticks: list[Found], markdown: bool) -> str:
    """A row for each way of making a row of an original."""
    found = {(f["way"], f["crop"], f["row_px"]): f["mean"] for f in yardsticks}
    columns = list(dict.fromkeys((f["crop"], f["row_px"]) for f in yardsticks))
    rows: list[list[object]] = []
    for way in _in_order(yardsticks, "way"):
        means = [found.get((way, *column)) for column in columns]
        rows.append([way, *("" if mean is None else f"{mean:.2f}" for mean in means)])
    headers = [f"{crop} @{size}" for crop, size in columns]
    return table(rows, ["originals, otherwise", *headers], markdown=markdown)


def tables(found: Found, *, markdown: bool = False) -> str:
    """All three."""
    return "\n\n".join(
        (
            _copies(found["copies"], markdown),
            _sizes(found["copies"], markdown),
            _yardsticks(found["yardsticks"], markdown),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path, help="what cache_pixels.py --json wrote")
    options = parser.parse_args()
    print(tables(json.loads(options.result.read_text()), markdown=True))


if __name__ == "__main__":
    main()
