"""Compare progressive runs over a cache, over the originals and with torch, bound by loading.

    python benchmarks/cache_progressive.py FOLDER --json benchmarks/results/cache_progressive.json

Method: a cache with the resolutions `--levels` is built from `--images` images (hard links to the
folder's). Then, alternating for `--rounds` rounds, each run in a new process:

    cache                       `--schedule` over the cache: each image size reads its resolution
    originals                   the same schedule over the originals
    originals, largest size     the same number of epochs over the originals at the last size
    torch, originals            the schedule with a tuned uint8 torch loader, rebuilt for each size

A run reads all batches of all epochs as fast as they come. Its time is from the first to the last
batch; the time to the first batch, which happens once in a real run and would dominate a short one,
is reported separately. Ratios are computed per round. The time of an image size ends with its last
batch.

Caveats: files are in the page cache. A step longer than loading hides the difference: these gains
apply to runs bound by loading.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from links import linked
from page_cache import read_once
from progressive_peers.turns import run
from progressive_peers.work import Work
from report import machine, save, spread, table, versions

from feedline import Schedule, build_cache
from feedline.system import usable_cores

PACKAGES = ("feedline", "torch", "torchvision", "numpy", "simplejpeg", "pillow")
CACHE = "cache"
TARGETS = {"originals": 3.0, "originals, largest size": 4.0}
_AT_ONCE = 1e9  # images per second of a step that costs nothing


def seconds(contestant: str, work: Work) -> dict[str, Any]:
    """Run once; return the total time, and the time by image size."""
    rates = {str(stage.size): _AT_ONCE for stage in work.stages}
    answer = run(contestant, work, rates=rates)
    if "missing" in answer:
        raise SystemExit(f"{contestant} over {work.folder}: {answer['missing']}")
    begin_s = answer["steps"][0][2]
    ends = {size: end_s for size, _, _, end_s in answer["steps"]}
    by_size, before_s = {}, begin_s
    for size, end_s in ends.items():
        by_size[size], before_s = end_s - before_s, end_s
    images = sum(rows for _, rows, _, _ in answer["steps"])
    return {
        "total_s": before_s - begin_s,
        "first_batch_s": answer["first_batch_s"],
        "by_size_s": by_size,
        "images": images,
    }


def measure(originals: Path, scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds; return the turns by run name."""
    many = linked(originals, options.images, scratch / "images")
    levels = [int(side) for side in options.levels.split(",")]
    build_cache(many, scratch / "cache", levels, format=options.format)
    read_once(scratch)
    phases = Schedule.parse(options.schedule).phases
    largest = f"{phases[-1].image_size}x{sum(phase.epochs for phase in phases)}"

    def work(folder: Path, schedule: str) -> Work:
        return Work(
            folder=str(folder),
            schedule=schedule,
            batch_size=options.batch_size,
            workers=options.workers,
            device="",
        )

    contestants = {
        CACHE: ("feedline_exact", work(scratch / "cache", options.schedule)),
        "originals": ("feedline_exact", work(many, options.schedule)),
        "originals, largest size": ("feedline_exact", work(many, largest)),
        "torch, originals": ("rebuilt_uint8", work(many, options.schedule)),
    }
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    for number in range(options.rounds):
        for name, (contestant, request) in contestants.items():
            turn = seconds(contestant, request)
            turns[name].append(turn)
            log(f"round {number + 1} of {options.rounds}, {name}: {turn['total_s']:.1f} s")
    return turns


def tables(turns: dict[str, list[dict[str, Any]]]) -> str:
    """Results as text, with the targets."""
    cached = [turn["total_s"] for turn in turns[CACHE]]
    rows, lines = [], []
    for name, runs in turns.items():
        totals = [turn["total_s"] for turn in runs]
        ratios = [total / own for total, own in zip(totals, cached, strict=True)]
        shares = ", ".join(
            f"{size}: {median(turn['by_size_s'][size] for turn in runs):.1f}"
            for size in runs[0]["by_size_s"]
        )
        first_s = median(turn["first_batch_s"] for turn in runs)
        rows.append([name, spread(totals, 1), spread(ratios, 2), shares, f"{first_s:.1f}"])
        if name in TARGETS:
            status = "met   " if median(ratios) >= TARGETS[name] else "MISSED"
            lines.append(f"{status} {name} / {CACHE} {spread(ratios, 2)}, at least {TARGETS[name]}")
    headers = ["run over", "seconds", "as long as over the cache", "seconds at each size"]
    headers += ["to the first batch, s"]
    return "\n".join([table(rows, headers), "", *lines])


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder of JPEGs with one sub-folder per class")
    parser.add_argument("--schedule", default="112x2,160x2,224x2")
    parser.add_argument("--levels", default="128,192,256")
    parser.add_argument("--format", default="webdataset", choices=("webdataset", "lmdb", "folder"))
    parser.add_argument("--images", type=int, default=10_000, help="images per epoch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--under", type=Path, help="parent folder of the temporary images and cache"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    fixed = ("schedule", "levels", "format", "images", "batch_size", "workers", "rounds")
    with tempfile.TemporaryDirectory(prefix="feedline-cached-", dir=options.under) as scratch:
        turns = measure(options.folder.resolve(), Path(scratch), options)
    print(tables(turns))
    results = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in fixed},
        "runs": turns,
    }
    save(results, options.json)


if __name__ == "__main__":
    main()
