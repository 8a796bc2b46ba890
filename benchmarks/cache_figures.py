"""What was measured of caches, as rows of BENCHMARKS.md's first table; `results/` has every turn.

python benchmarks/cache_figures.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from caches_table import BARE, FFCV, FILES, OURS, TORCH, WEBDATASET, part, rate, ratios, summary

__all__ = ["rows", "table"]

ROOT = Path(__file__).parents[1]
IN_SHORT = ROOT / "docs" / "BENCHMARKS.md"
PAGE = ROOT / "docs" / "CACHE.md"


def rows() -> str:
    """The first table's rows, one a figure: what, measured, script."""
    return "\n".join(
        [
            *_versus(_results("caches")),
            *_build(_results("cache_build")),
            *_open(_results("cache_open")),
            *_progressive(_results("cache_progressive")),
        ]
    )


def table() -> str:
    """The page's table, a row a loader."""
    return summary(_results("caches"))


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())
    return found


def _row(what: str, measured: str, script: str = "") -> str:
    return f"| {what} | {measured} | {f'`{script}` ' if script else ''}|"


def _span(values: Sequence[float], digits: int = 2) -> str:
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def _versus(found: dict[str, Any]) -> list[str]:
    works = {task["name"]: part(task) for task in found["tasks"]}

    def over(work: str, others: Sequence[str], ours: str = OURS) -> str:
        there = works[work]
        quickest = max((there[name] for name in others if name in there), key=rate)
        return _span(ratios(there[ours], quickest))

    large, small, large_raw, small_raw = (
        *("256 px JPEG @224", "128 px JPEG @112"),
        *("256 px raw @224", "128 px raw @112"),
    )
    return [
        _row(
            "a cache of 256 px JPEGs @224: feedline / FFCV, the quickest torch loader, "
            "WebDataset's reader, with copies of the same pixels",
            f"{over(large, [FFCV])}, {over(large, TORCH)}, {over(large, WEBDATASET)}",
            "caches_versus.py",
        ),
        _row(
            "of 128 px JPEGs @112: feedline / FFCV, the quickest torch loader",
            f"{over(small, [FFCV])}, {over(small, TORCH)}",
        ),
        _row(
            "of raw pixels, 256 px @224, 128 px @112: feedline / FFCV",
            f"{over(large_raw, [FFCV])}, {over(small_raw, [FFCV])}",
        ),
        _row(
            "these four: feedline / bare processes that make the same rows",
            ", ".join(over(work, [BARE]) for work in works),
        ),
        _row(
            "256 px JPEGs @224 in tar shards, in an LMDB / in plain files",
            f"{over(large, [FILES])}, {over(large, [FILES], 'feedline, lmdb')}",
        ),
    ]


def _build(found: dict[str, Any]) -> list[str]:
    measured = []
    for entry in found["builds"]:
        turns = entry["turns"]
        shares = [turn["images_per_s"] / turn["bare_images_per_s"] for turn in turns]
        speed = median(turn["images_per_s"] for turn in turns)
        sides = ", ".join(map(str, entry["sizes"]))
        measured.append(f"{sides} px: {speed:.0f}/s, {_span(shares)}")
    images = found["settings"]["images"]
    what = f"building a cache of {images:,} photographs / decoding, resizing and encoding alone"
    return [_row(what, "; ".join(measured), "cache_build.py")]


def _open(found: dict[str, Any]) -> list[str]:
    turns = found["turns"]
    from_disk, at_once = turns["open, from the disk"], turns["open"]
    seconds = [f"{median(turn['seconds'] for turn in some):.3f} s" for some in (at_once, from_disk)]
    memory = max(turn["own_mb"] for turn in (*at_once, *from_disk))
    large, few = (median(found["worker_mb"][which]) for which in ("large", "few"))
    beside, without = (
        median(turn["seconds"] for turn in turns[f"torchvision's, {how}"])
        for how in ("cache beside it", "without")
    )
    samples = f"{found['settings']['samples'] / 1e6:.1f} million images"
    return [
        _row(
            f"a cache of {samples}: opened, the same from a cold disk, memory, more in a worker",
            f"{', '.join(seconds)}, {memory:.1f} MB, {max(0.0, large - few):.1f} MB",
            "cache_open.py",
        ),
        _row(
            f"a torchvision ImageFolder of {samples}: recognised, and with its copies found",
            f"{without:.2f} s, {beside:.2f} s",
        ),
    ]


def _progressive(found: dict[str, Any]) -> list[str]:
    totals = {name: [run["total_s"] for run in runs] for name, runs in found["runs"].items()}

    def over_cache(name: str) -> str:
        pairs = zip(totals[name], totals["cache"], strict=True)
        return _span([total / cached for total, cached in pairs])

    return [
        _row(
            f"a run of {found['settings']['schedule']} that only loads: the originals / a cache of "
            f"{found['settings']['levels']} px; all of it at the last size / the cache",
            f"{over_cache('originals')}; {over_cache('originals, largest size')}",
            "cache_progressive.py",
        ),
    ]


def write() -> None:
    """Put the figures where those of before are."""
    lines = IN_SHORT.read_text().split("\n")
    first = next(k for k, line in enumerate(lines) if "`caches_versus.py`" in line)
    last = next(k for k, line in enumerate(lines) if "`cache_progressive.py`" in line)
    IN_SHORT.write_text("\n".join([*lines[:first], rows(), *lines[last + 1 :]]))
    before, heading, section = PAGE.read_text().partition("## How fast it is\n")
    parts = section.split("\n\n")
    place = next(k for k, part in enumerate(parts) if part.startswith("|"))
    parts[place] = table()
    PAGE.write_text(before + heading + "\n\n".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--write", action="store_true", help="into docs/BENCHMARKS.md and docs/CACHE.md"
    )
    if parser.parse_args().write:
        write()
    else:
        print(f"{rows()}\n\n{table()}")


if __name__ == "__main__":
    main()
