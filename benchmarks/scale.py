"""Measure throughput by number of workers, batch size, image size and size of the index.

    python benchmarks/scale.py FOLDER --rounds 5 --json F --plot F.png

Method: one quantity is varied at a time, starting from `--workers`, `--batch-size` and `--size`.
For each value feedline and bare processes that make the same calls (`peers/limit_own.py`: read,
decode, crop, resize) are measured alternately for `--rounds` rounds, in new processes: `--lead`
seconds consume prefetched batches and warm up caches, `--seconds` are measured. Rates are medians
with ranges; shares of bare processes are computed per turn. Images: `--files` of the folder, linked
to epochs of 10,000. For the index: folders with that many entries, 1300 per class as in ImageNet,
all hard links to copies with a shorter side of 128 px, at 112 px, so that the index has the largest
effect; bare processes have no index and are omitted.

Further columns explain why a curve bends:

    core ms / image     milliseconds of the used cores per image: cores / rate
    CPU ms / image      CPU time of all processes per image, by the kernel's count; much less than
                        core ms means that cores waited or were used by other processes
    CPU ms / megapixel  (image size) CPU time added per megapixel of a larger row, relative to the
                        previous size
    CPU ms / batch      (batch size) CPU time added per batch by a smaller batch size, relative to
                        the previous size
    enlarged %          crops that are enlarged, each pixel from 2 x 2 pixels of the image
    scan s, order s     time to list the folder once, and to draw the permutation of an epoch (the
                        first batch of each epoch waits for it)

Caveats: files are in the page cache. More workers than cores share them. A slope is a difference of
two noisy figures. The first batch counts from building the loader, including the start of the fork
server and listing the folder. Epochs of 10,000 images contain few large batches.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contest import Contestant
from copies import jpeg_copies
from links import linked
from peers.work import RATIO, SCALE, Work
from PIL import Image
from report import machine, save, versions
from scale_table import picture, tables

from feedline import ImageFolder, TrainCrop
from feedline.order.sample_order import epoch_order
from feedline.order.seeds import RandomStream
from feedline.system import usable_cores

PACKAGES = ("feedline", "torch", "numpy", "simplejpeg")
EPOCH = 10_000
COPIES_PX = 128
INDEX_PX = 112


@dataclass(frozen=True)
class Point:
    """A value of the varied quantity, its work, and the measured peers."""

    axis: str
    value: int
    work: Work
    peers: tuple[str, ...] = ("feedline_exact", "limit_own")
    facts: Callable[[Work], dict[str, float]] = lambda work: {}


def turn(peer: str, work: Work, options: argparse.Namespace) -> dict[str, float]:
    """Measure once, in new processes."""
    contestant = Contestant(peer, work)
    try:
        contestant.turn(options.lead, options.seconds)
        result = contestant.result
        if result.missing:
            raise RuntimeError(f"{peer}: {result.missing}")
        return {
            "rate": result.rates[0],
            "cpu_ms": result.cpu_s[0],  # seconds per 1000 images
            "pss_mb": result.pss_mb[0],
            "first_batch_s": result.first_batch_s or 0.0,
        }
    finally:
        contestant.close()


def enlarged(work: Work) -> dict[str, float]:
    """Percentage of crops that are enlarged, from one crop of every image."""
    crop, grown = TrainCrop(scale=SCALE, ratio=RATIO), 0
    paths = {Path(path).stat().st_ino: path for path, _ in work.files()}.values()
    for number, path in enumerate(paths):
        with Image.open(path) as image:
            box = crop.box(image.height, image.width, RandomStream(number))
        grown += max(box.height, box.width) <= work.size
    return {"enlarged_percent": 100 * grown / len(paths)}


def index_costs(work: Work) -> dict[str, float]:
    """Seconds to list the folder, and to draw the order of an epoch."""
    start = time.perf_counter()
    data = ImageFolder(work.folder)
    listed = time.perf_counter()
    epoch_order.__wrapped__(len(data), 0, 0, "shuffled")  # bypass the cache
    return {"scan_s": listed - start, "order_s": time.perf_counter() - listed}


def points(options: argparse.Namespace, scratch: Path) -> list[Point]:
    """All points to measure; creates the folders."""
    few = linked(options.folder.resolve(), options.files, scratch / "few")

    def work(**varied: Any) -> Work:
        fixed = {
            "kind": "jpeg",
            "folder": str(scratch / "images"),
            "size": options.size,
            "batch_size": options.batch_size,
            "workers": options.workers,
            "repeat": 1,
            "scratch": "",
        }
        return Work(**(fixed | varied))

    all_points = []
    linked(few, EPOCH, scratch / "images")
    for path in few.glob("*/*"):
        path.read_bytes()
    all_points += [Point("workers", n, work(workers=n)) for n in options.workers_axis]
    all_points += [Point("batch size", n, work(batch_size=n)) for n in options.batch_axis]
    all_points += [Point("image size", n, work(size=n), facts=enlarged) for n in options.size_axis]
    if options.index_axis:
        small = jpeg_copies(few, COPIES_PX, scratch / "small")
    for n in options.index_axis:
        folder = linked(small, n, scratch / f"index-{n}")
        all_points.append(
            Point(
                "index",
                n,
                work(folder=str(folder), size=INDEX_PX),
                ("feedline_exact",),
                index_costs,
            )
        )
    return all_points


def measure(all_points: list[Point], options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Measure all points alternately; save after each round."""
    results["points"] = [{"axis": p.axis, "value": p.value, "turns": []} for p in all_points]
    for number in range(options.rounds):
        for point, entry in zip(all_points, results["points"], strict=True):
            done: dict[str, Any] = {peer: turn(peer, point.work, options) for peer in point.peers}
            entry["turns"].append(done | point.facts(point.work))
            log(
                f"round {number + 1}, {point.axis} {point.value}: "
                f"{done['feedline_exact']['rate']:.0f} images/s"
            )
        save(results, options.json)


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def numbers(text: str) -> list[int]:
    """Parse comma-separated integers; may be empty."""
    return [int(part) for part in text.split(",") if part]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of JPEGs with one sub-folder per class")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    for axis, default in (
        ("workers", "1,2,4,8"),
        ("batch", "8,16,32,64,128,256,512"),
        ("size", "64,112,160,224,288,384"),
        ("index", "1000,10000,100000,1300000"),
    ):
        parser.add_argument(f"--{axis}-axis", type=numbers, default=default, help='"": skip')
    parser.add_argument(
        "--files", type=int, default=500, help="number of images, spread evenly over the folder"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--lead", type=float, default=2.0, help="warm-up seconds per turn, not measured"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="measured seconds per turn")
    parser.add_argument("--under", type=Path, help="parent folder of the temporary image folders")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    fixed = ("workers", "batch_size", "size", "files", "rounds", "lead", "seconds")
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in fixed},
    }
    with tempfile.TemporaryDirectory(prefix="feedline-scale-", dir=options.under) as scratch:
        measure(points(options, Path(scratch)), options, results)
    print(tables(results))
    if options.plot:
        picture(results, options.plot)


if __name__ == "__main__":
    main()
