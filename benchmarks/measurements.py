"""Write the tables of docs/explanation/measurements.md from the files in `results/`.

    python benchmarks/measurements.py

Each table is between `<!-- NAME -->` and `<!-- end -->`; the text around it is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import caches_table
import versus_table
from report import describe_processor, table

__all__ = ["PAGE", "fill_tables"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "measurements.md"
WORKS = ("originals @224", "256 px copies @224", "128 px copies @112")
DATASETS = {
    "images 2": "torchvision ImageFolder, 2 workers",
    "large": "the same, mosaics of 12 megapixels",
    "work 2": "own Dataset, 0.5 ms of Python and torch a sample, 2 workers",
    "tensors 0": "TensorDataset, 3 kB a sample, no workers",
    "tensors 2": "the same, 2 workers",
    "tiny 0": "own Dataset, 3 kB a sample, no workers",
    "tiny 2": "the same, 2 workers",
}
PEERS = (
    *("limit", "limit_own", "feedline_exact", "torch_pillow", "torch_float", "torch_stock"),
    *("timm_prefetch", "dali", "ffcv", "spdl", "webdataset", "litdata", "streaming"),
)
RECIPES = {
    "torchvision, training": "torchvision, training",
    "timm, training": "timm, training",
    "timm, RandAugment": "timm, RandAugment",
    "torchvision's reference, mixing in collate_fn": "torchvision, MixUp in collate_fn",
    "a Dataset over a CSV file": "own Dataset, `feedline.compile`",
    "segmentation, torchvision's preset": "segmentation, `feedline.pair`",
    "SimCLR, two views": "SimCLR, two views, `feedline.views`",
    "DINO, 2 + 8 views": "DINO, 2 + 8 views, `feedline.views`",
}
LOADERS = {
    "feedline_exact": "feedline",
    "sized_index": "torch, workers kept, size with the index",
    "sized_stream": "torch, workers kept, one sized stream",
    "rebuilt_uint8": "torch, rebuilt for each size, uint8",
    "timm_scheduled": "timm's scheduled sampler",
    "rebuilt_pillow": "torch, rebuilt for each size, Pillow",
}

Results = dict[str, Any]


def fill_tables(text: str) -> str:
    """Replace all tables in the page."""
    for name, make in TABLES.items():
        block = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end -->)", re.S)
        made = f"\n{make()}\n\n"
        text, count = block.subn(made.replace("\\", r"\\"), text)
        if count != 1:
            raise SystemExit(f"{PAGE}: expected one table {name!r}, found {count}")
    return text


def results(name: str) -> Results:
    """Load the results of a benchmark."""
    data: Results = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return data


def span(values: Sequence[float], digits: int = 2) -> str:
    """Median and range."""
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def processors() -> str:
    """Processor of each results file."""
    names: dict[str, list[str]] = {}
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        machine = results(path.stem).get("machine", {})
        names.setdefault(describe_processor(machine), []).append(f"`{path.stem}`")
    rows = [[processor, ", ".join(each)] for processor, each in names.items()]
    return table(rows, ["processor", "results"], markdown=True)


def peers() -> str:
    """Images per second of all loaders."""
    return versus_table.summary(results("versus"), WORKS, PEERS)


def datasets() -> str:
    """Samples per second on the same dataset objects."""
    tasks = results("any_dataset")["tasks"] | {"large": results("large")}
    rows = []
    for name, label in DATASETS.items():
        data = tasks[name]
        rates = [f"{median(data['samples_s'][who]):.0f}" for who in ("torch", "feedline")]
        first = [f"{1000 * median(data['first_batch_s'][who]):.0f}" for who in data["samples_s"]]
        rows.append([label, *rates, span(data["ratio"]), ", ".join(first)])
    headers = [
        "dataset",
        "torch/s",
        "feedline/s",
        "ratio (range)",
        "first batch, ms: torch, feedline",
    ]
    return table(rows, headers, markdown=True)


def recipes() -> str:
    """Images per second of published recipes."""
    rows, data = [], {row["recipe"]: row for row in results("recipes")["rows"]}
    for name, label in RECIPES.items():
        row = data[name]
        medians = {loader: median(rates) for loader, rates in row["rates"].items()}
        others = [f"{loader} {rate:.0f}" for loader, rate in list(medians.items())[2:]]
        rows.append(
            [
                label,
                f"{medians['torch']:.0f}",
                f"{medians['feedline']:.0f}",
                span(row["ratios"]),
                ", ".join(others) or "-",
            ]
        )
    return table(rows, ["recipe", "torch", "feedline", "ratio (range)", "others"], markdown=True)


def progressive() -> str:
    """Time of a progressive run relative to its steps alone."""
    runs = results("progressive")["runs"]
    rows = []
    for key, label in LOADERS.items():
        own = [run for run in runs if run["contestant"] == key]
        totals = [[run["total"] for run in own if run["speed"] == at] for at in (0.5, 1.0, 1.2)]
        switches = zip(*[run["switches"] for run in own if run["speed"] == 1.0], strict=True)
        cells = ["-" if not of else f"{median(of):.3f}" for of in totals]
        rows.append([label, *cells, ", ".join(f"{median(each):.1f}" for each in switches)])
    headers = ["loader", "50%", "100%", "120%", "interval at a change / usual: 160, 224 px"]
    return table(rows, headers, markdown=True)


def caches() -> str:
    """Ratios of caches: reading, building, opening, and a progressive run."""
    rows = [*_caches_versus(results("caches")), *_cache_build(results("cache_build"))]
    rows += [*_cache_open(results("cache_open")), *_cache_run(results("cache_progressive"))]
    return table(rows, ["what", "measured"], markdown=True)


def _caches_versus(data: Results) -> list[list[str]]:
    works = {task["name"]: caches_table.part(task) for task in data["tasks"]}
    ours, torch = caches_table.OURS, caches_table.TORCH

    def over(work: str, others: Sequence[str], own: str = ours) -> str:
        there = works[work]
        fastest = max((there[name] for name in others if name in there), key=caches_table.rate)
        return span(caches_table.ratios(there[own], fastest))

    ffcv, files = [caches_table.FFCV], [caches_table.FILES]
    large, small, large_raw, small_raw = works
    web = over(large, caches_table.WEBDATASET)
    tars, lmdb = over(large, files), over(large, files, "feedline, lmdb")
    bare = ", ".join(over(work, [caches_table.BARE]) for work in works)
    return [
        [
            "256 px JPEGs @224: feedline / FFCV, fastest torch loader, WebDataset",
            f"{over(large, ffcv)}, {over(large, torch)}, {web}",
        ],
        [
            "128 px JPEGs @112: feedline / FFCV, fastest torch loader",
            f"{over(small, ffcv)}, {over(small, torch)}",
        ],
        [
            "raw pixels, 256 px @224, 128 px @112: feedline / FFCV",
            f"{over(large_raw, ffcv)}, {over(small_raw, ffcv)}",
        ],
        ["these four: feedline / bare processes", bare],
        ["256 px JPEGs @224: tar shards, LMDB / plain files", f"{tars}, {lmdb}"],
    ]


def _cache_build(data: Results) -> list[list[str]]:
    measured = []
    for entry in data["builds"]:
        turns, sides = entry["turns"], ", ".join(map(str, entry["sizes"]))
        shares = [turn["images_per_s"] / turn["bare_images_per_s"] for turn in turns]
        rate = median(turn["images_per_s"] for turn in turns)
        measured.append(f"{sides} px: {rate:.0f}/s, {span(shares)}")
    what = f"build of {data['settings']['images']:,} photographs / decode, resize, encode alone"
    return [[what, "; ".join(measured)]]


def _cache_open(data: Results) -> list[list[str]]:
    turns = data["turns"]
    warm, cold = (
        f"{median(turn['seconds'] for turn in turns[how]):.3f} s"
        for how in ("open", "open, from the disk")
    )
    memory = max(turn["own_mb"] for how in ("open", "open, from the disk") for turn in turns[how])
    samples = f"{data['settings']['samples'] / 1e6:.1f} million images"
    what = f"opening a cache of {samples}, from memory, from a cold disk; its memory"
    return [[what, f"{warm}, {cold}; {memory:.1f} MB"]]


def _cache_run(data: Results) -> list[list[str]]:
    totals = {name: [run["total_s"] for run in runs] for name, runs in data["runs"].items()}

    def over_cache(name: str) -> str:
        pairs = zip(totals[name], totals["cache"], strict=True)
        return span([total / cached for total, cached in pairs])

    schedule, levels = data["settings"]["schedule"], data["settings"]["levels"]
    what = f"loading {schedule}: originals / cache of {levels} px; all at the last size / cache"
    largest = over_cache("originals, largest size")
    return [[what, f"{over_cache('originals')}; {largest}"]]


TABLES: Mapping[str, Callable[[], str]] = {
    "processors": processors,
    "peers": peers,
    "datasets": datasets,
    "recipes": recipes,
    "progressive": progressive,
    "caches": caches,
}


if __name__ == "__main__":
    PAGE.write_text(fill_tables(PAGE.read_text()))
