"""How feedline's throughput goes with workers, batch size, image size and the size of the index.

Method: one thing is varied at a time, from `--workers`, `--batch-size` and `--size`. For each of
its values feedline and bare processes that make the same calls (`peers/limit_own.py`: they only
read, decode, crop and resize) are measured in turn, `--rounds` times, each time in new processes:
`--lead` seconds use up what was made ahead and warm caches, `--seconds` are counted. Rates are
medians with their range; shares of bare processes are taken turn by turn. Images: `--files` of the
folder, linked to make epochs of 10,000. For the index: folders of as many entries, ImageNet's
1300 a class, all of them hard links to copies with a shorter side of 128 px, at 112 px, whose
little work leaves an index most room to show; bare processes have no index, and are left out.

Beside the rates stand the figures from which to tell why a curve bends:

    core ms / image     milliseconds of the used cores for an image: cores / rate
    CPU ms / image      what of that all processes computed, by the kernel's count; much less than
                        core ms means cores that waited, or were taken by others
    CPU ms / megapixel  (image size) CPU time that a larger row added, by megapixel of the row,
                        against the size before
    CPU ms / batch      (batch size) CPU time of a batch as such: what a smaller batch added,
                        by batch, against the size before
    enlarged %          crops that grow, whose pixels are made of two by two of the image
    scan s, order s     to list the folder once, to draw an epoch's permutation (each epoch's
                        first batch waits for it)

Caveats: files come from the page cache, read beforehand. More workers than cores take turns. A
slope is a difference of two noisy figures. The first batch counts from building the loader, with
its fork server to start and the folder to list. Epochs of 10,000 images hold few large batches.

    python benchmarks/scale.py FOLDER --rounds 5 --json F --plot F.png
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
    """A value of what is varied, the work that it means, and who does it."""

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
            "cpu_ms": result.cpu_s[0],  # seconds for 1000 images
            "pss_mb": result.pss_mb[0],
            "first_batch_s": result.first_batch_s or 0.0,
        }
    finally:
        contestant.close()


def enlarged(work: Work) -> dict[str, float]:
    """Of one crop of every image, the percentage that is enlarged."""
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
    epoch_order.__wrapped__(len(data), 0, 0, "shuffled")  # not from its cache
    return {"scan_s": listed - start, "order_s": time.perf_counter() - listed}


def points(options: argparse.Namespace, scratch: Path) -> list[Point]:
    """Everything to be measured; makes the folders."""
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

    made = []
    linked(few, EPOCH, scratch / "images")
    for path in few.glob("*/*"):
        path.read_bytes()
    made += [Point("workers", n, work(workers=n)) for n in options.workers_axis]
    made += [Point("batch size", n, work(batch_size=n)) for n in options.batch_axis]
    made += [Point("image size", n, work(size=n), facts=enlarged) for n in options.size_axis]
    if options.index_axis:
        small = jpeg_copies(few, COPIES_PX, scratch / "small")
    for n in options.index_axis:
        folder = linked(small, n, scratch / f"index-{n}")
        made.append(
            Point(
                "index",
                n,
                work(folder=str(folder), size=INDEX_PX),
                ("feedline_exact",),
                index_costs,
            )
        )
    return made


def measure(made: list[Point], options: argparse.Namespace, found: dict[str, Any]) -> None:
    """All points, in turn; saves each round."""
    found["points"] = [{"axis": p.axis, "value": p.value, "turns": []} for p in made]
    for number in range(options.rounds):
        for point, entry in zip(made, found["points"], strict=True):
            done: dict[str, Any] = {peer: turn(peer, point.work, options) for peer in point.peers}
            entry["turns"].append(done | point.facts(point.work))
            log(
                f"round {number + 1}, {point.axis} {point.value}: "
                f"{done['feedline_exact']['rate']:.0f} images/s"
            )
        save(found, options.json)


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def numbers(text: str) -> list[int]:
    """Whole numbers, comma separated; may be none."""
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
        parser.add_argument(f"--{axis}-axis", type=numbers, default=default, help='"": left out')
    parser.add_argument("--files", type=int, default=500, help="taken evenly from the folder")
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
    found: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in fixed},
    }
    with tempfile.TemporaryDirectory(prefix="feedline-scale-", dir=options.under) as scratch:
        measure(points(options, Path(scratch)), options, found)
    print(tables(found))
    if options.plot:
        picture(found, options.plot)


if __name__ == "__main__":
    main()
