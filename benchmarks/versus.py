"""Compare feedline with other data loaders, and with the limit of the machine.

    python benchmarks/versus.py FOLDER --json result.json

Method: every peer runs in its own process (`peers/`). For each task they are measured alternately
for `--rounds` rounds (A B C A B C): `--lead` seconds consume prefetched batches, `--seconds` are
measured, then the processes idle before the next turn. A warm-up round is discarded. Files are in
the page cache (`--cache warm`, default: read beforehand) or dropped from it before every turn
(`--cache dropped`). The time to the first batch counts from building the loader, after imports.
Ratios are computed per round. Tasks:

    originals                      at 224, 160 and 112 px
    JPEG copies, shorter side 256  at 224, 160 and 112 px
    JPEG copies, shorter side 128  at 112 px
    raw copies, 256 and 128 px     at 224 and 112 px: central squares, one uint8 array in a file

Caveats: results of one machine; pixels differ between peers (last column), and less exact resizing
is an advantage. Peers that produce float32 do this extra work because their users do.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from contest import Contestant, Result, contestants
from copies import jpeg_copies, raw_copies
from page_cache import drop_from_cache, read_once
from peers import PEERS
from peers.work import Work
from report import machine, versions
from versus_table import picture, table

WARM_UP_S = 2.0


@dataclass(frozen=True)
class Task:
    """Kind of images, and image size of the batches."""

    images: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.images} @{self.size}"


TASKS = (
    Task("originals", 224),
    Task("originals", 160),
    Task("originals", 112),
    Task("256 px copies", 224),
    Task("256 px copies", 160),
    Task("256 px copies", 112),
    Task("128 px copies", 112),
    Task("256 px raw", 224),
    Task("128 px raw", 112),
)


class Images:
    """Kinds of images, created on first use."""

    def __init__(self, originals: Path, scratch: Path) -> None:
        self._originals = originals
        self._scratch = scratch

    def folder(self, task: Task) -> tuple[str, Path]:
        """Kind and folder of a task's images."""
        if task.images == "originals":
            return "jpeg", self._originals
        shorter = int(task.images.split()[0])
        kind, make = ("raw", raw_copies) if "raw" in task.images else ("jpeg", jpeg_copies)
        folder = self._scratch / task.images.replace(" ", "-")
        if not folder.exists():
            make(self._originals, shorter, folder)
        return kind, folder


def measure(task: Task, images: Images, scratch: Path, options: argparse.Namespace) -> list[Result]:
    """Measure all peers at one task, alternately."""
    kind, folder = images.folder(task)
    work = Work(
        kind=kind,
        folder=str(folder),
        size=task.size,
        batch_size=options.batch_size,
        workers=options.workers,
        repeat=options.repeat,
        scratch="",
    )
    read_once(folder)
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        works = []
        for peer in options.peers:
            (Path(own) / peer).mkdir()
            works.append(replace(work, scratch=str(Path(own) / peer)))
        with contestants(options.peers, works) as all_peers:
            for number in range(options.rounds):
                for one in all_peers:
                    turn(one, number, folder, options)
                log(task, f"round {number + 1} of {options.rounds}")
            return [one.result for one in all_peers]


def turn(one: Contestant, number: int, folder: Path, options: argparse.Namespace) -> None:
    if options.cache == "dropped":
        drop_from_cache(folder)
    one.turn(options.lead if number else WARM_UP_S, options.seconds)


def log(task: Task, message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {task.name}: {message}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="image folder with one sub-folder per class")
    parser.add_argument(
        "--peers", default=",".join(PEERS), help="modules of peers/, comma separated"
    )
    parser.add_argument("--only", default="", help="run only tasks whose name contains this text")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds per turn")
    parser.add_argument(
        "--lead", type=float, default=0.7, help="warm-up seconds per turn, not measured"
    )
    parser.add_argument("--repeat", type=int, default=20, help="passes over the images per epoch")
    parser.add_argument("--cache", choices=("warm", "dropped"), default="warm")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    options = parser.parse_args()
    options.peers = options.peers.split(",")
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"unknown peers {sorted(unknown)}; there are {', '.join(PEERS)}")
    return options


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    settings = {
        name: getattr(options, name)
        for name in ("workers", "batch_size", "rounds", "seconds", "lead", "repeat", "cache")
    }
    tasks: list[dict[str, Any]] = []
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(("feedline", "torch", "torchvision", "numpy", "simplejpeg", "pillow")),
        "settings": settings,
        "tasks": tasks,
    }
    with tempfile.TemporaryDirectory(prefix="feedline-versus-") as scratch:
        images = Images(options.folder.resolve(), Path(scratch) / "images")
        (Path(scratch) / "images").mkdir()
        for task in TASKS:
            if options.only in task.name:
                peers = measure(task, images, Path(scratch), options)
                entry = {
                    "name": task.name,
                    "peers": [asdict(result) for result in peers],
                }
                tasks.append(entry)
                print(table(entry, options.workers), flush=True)
                if options.json:
                    options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.plot:
        picture(results, options.plot, (), loaders=False)


if __name__ == "__main__":
    main()
