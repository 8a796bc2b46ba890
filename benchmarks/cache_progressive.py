"""A progressive run that waits for nothing but its batches: over a cache and over the originals.

Method: a cache of `--levels` is made of `--images` images (hard links to the folder's). Then, in
turn, `--rounds` times, each run in a process of its own:

    cache                       `--schedule` over the cache: each size reads the level it wants
    originals                   the same schedule over the originals
    originals, largest size     as many epochs over the originals, all at the schedule's last size
    torch, originals            the schedule by torch: a tuned uint8 loader rebuilt for each size

A run takes all batches of all epochs as fast as they come, one loader changing sizes as its
schedule says (torch: three). Its time counts from the first batch to the last; what it takes to the
first one, which a real run has once and a short one here would be full of, stands beside it. Ratios
are taken round by round. A size's share is from the last batch before it to its own last.

Caveats: files are in the page cache, read once beforehand. A step that takes longer than loading
hides it: this is what is won where loading is what bounds a run.

    python benchmarks/cache_progressive.py FOLDER --json benchmarks/results/cache_progressive.json
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
BARS = {"originals": 3.0, "originals, largest size": 4.0}
_AT_ONCE = 1e9  # images a second that a step takes


def seconds(contestant: str, work: Work) -> dict[str, Any]:
    """One run: its seconds, and those of each size."""
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
    """All runs, by what they are called."""
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
        for name, (contestant, asked) in contestants.items():
            turn = seconds(contestant, asked)
            turns[name].append(turn)
            say(f"round {number + 1} of {options.rounds}, {name}: {turn['total_s']:.1f} s")
    return turns


def tables(turns: dict[str, list[dict[str, Any]]]) -> str:
    """The figures, and what feedline is held to."""
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
        if name in BARS:
            said = "met   " if median(ratios) >= BARS[name] else "MISSED"
            lines.append(f"{said} {name} / {CACHE} {spread(ratios, 2)}, at least {BARS[name]}")
    headers = ["run over", "seconds", "as long as over the cache", "seconds at each size"]
    headers += ["to the first batch, s"]
    return "\n".join([table(rows, headers), "", *lines])


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder with one sub-folder of JPEGs a class")
    parser.add_argument("--schedule", default="112x2,160x2,224x2")
    parser.add_argument("--levels", default="128,192,256")
    parser.add_argument("--format", default="webdataset", choices=("webdataset", "lmdb", "folder"))
    parser.add_argument("--images", type=int, default=10_000, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--under", type=Path, help="where folder and cache are made")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cleans up, as Ctrl-C does
    fixed = ("schedule", "levels", "format", "images", "batch_size", "workers", "rounds")
    with tempfile.TemporaryDirectory(prefix="feedline-cached-", dir=options.under) as scratch:
        turns = measure(options.folder.resolve(), Path(scratch), options)
    print(tables(turns))
    found = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in fixed},
        "runs": turns,
    }
    save(found, options.json)


if __name__ == "__main__":
    main()
