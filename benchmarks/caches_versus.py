"""Compare feedline over its caches with other loaders that read the same copies.

    python benchmarks/caches_versus.py FOLDER --json benchmarks/results/caches.json

Method: for each task a cache of the folder's images is built in each format. The other loaders get
files with the same pixels, size and quality, but without the restart markers of feedline's copies,
which slow other decoders: torch's loaders read the files, FFCV its own file with the same JPEG
bytes (or pixels, for raw copies), the `webdataset` package its own shards. Bare processes only do
the work of feedline's workers on the WebDataset cache (`peers/bare_rows.py`). feedline also reads
the originals. Each contestant runs in its own process. They alternate for `--rounds`
rounds (A B C A B C): `--lead` seconds consume prefetched batches, `--seconds` are measured, then
the processes idle. A warm-up round is discarded. Batches are uint8; files are in the page cache.
Ratios are computed per round. Tasks:

    256 px JPEG, 128 px JPEG    of `--quality`, at 224 and 112 px: crops of 25 to 100% of the area
    256 px raw, 128 px raw      the same without decoding

Each image occurs `--times` times, so that the end of an epoch has little weight.

Caveats: results of one machine. An epoch has `--repeat` times the images if a peer supports it;
feedline and WebDataset read each image once. torch + Pillow and torch float32 produce floats, as
their users do; a target counts the fastest of its group. FFCV and DALI produce less exact pixels
(see their files), which is to their advantage.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from caches_table import bars, table
from contest import Result, contestants
from copies import more_images, without_restarts
from page_cache import read_once
from peers.work import Work
from report import machine, save, versions

from feedline import build_cache

FORMATS = ("webdataset", "lmdb", "folder")
PACKAGES = (
    *("feedline", "torch", "torchvision", "numpy", "simplejpeg", "pillow", "xxhash", "lmdb"),
    *("ffcv", "webdataset", "timm", "nvidia-dali-cuda130"),
)


@dataclass(frozen=True)
class Task:
    """Resolution of the copies, and image size of the batches, in pixels."""

    side: int
    raw: bool
    size: int

    @property
    def name(self) -> str:
        return f"{self.side} px {'raw' if self.raw else 'JPEG'} @{self.size}"


TASKS = (
    Task(256, False, 224),
    Task(128, False, 112),
    Task(256, True, 224),
    Task(128, True, 112),
)


@dataclass(frozen=True)
class Entry:
    """A contestant: its name in the table, its module and its input.

    Args:
        reads: a cache format (the cache as a whole), "files" (copies without restart markers, or
            raw ones), or "originals" (the images that the caches were built from).
    """

    name: str
    peer: str
    reads: str


OURS = tuple(Entry(f"feedline, {name}", "feedline_exact", name) for name in FORMATS)
ORIGINALS = Entry("feedline, originals", "feedline_exact", "originals")
BARE = Entry("bare processes, feedline's rows", "bare_rows", "webdataset")
FFCV = Entry("FFCV", "ffcv", "files")
OF_JPEGS = (
    Entry("torch + Pillow", "torch_pillow", "files"),
    Entry("torch float32", "torch_float", "files"),
    Entry("torch uint8", "torch_stock", "files"),
    Entry("torch uint8, by hand", "torch_uint8", "files"),
    Entry("timm", "timm_prefetch", "files"),
    Entry("DALI", "dali", "files"),
    Entry("WebDataset", "webdataset", "files"),
    Entry("WebDataset + Pillow", "webdataset_pillow", "files"),
)
OF_RAW = (Entry("torch uint8, by hand", "torch_uint8", "files"),)


def entries(task: Task, only: str) -> list[Entry]:
    """Contestants of a task; `only` lists modules of peers, comma separated, or is "all"."""
    selected = only.split(",") if only else None
    # Contestants that are compared closely run next to each other.
    entries = [OURS[0], BARE, *OURS[1:], FFCV, *(OF_RAW if task.raw else OF_JPEGS), ORIGINALS]
    return [entry for entry in entries if selected is None or entry.peer in selected]


def measure(task: Task, originals: Path, scratch: Path, options: Any) -> list[Result]:
    """Measure all contestants of a task, alternately."""
    originals = more_images(originals, options.times, scratch / "originals")
    folders = {"originals": ("jpeg", originals)}
    for name in FORMATS:
        root = scratch / name
        quality = None if task.raw else options.quality
        build_cache(originals, root, (task.side,), format=name, raw=task.raw, quality=quality)
        folders[name] = "cache", root
    level = str(task.side)
    folders["files"] = "npy", scratch / "folder" / level
    if not task.raw:
        build_cache(originals, scratch / "pixels", (task.side,), format="folder", raw=True)
        jpegs, pixels = scratch / "folder" / level, scratch / "pixels" / level
        files = without_restarts(jpegs, pixels, options.quality, scratch / "files")
        folders["files"] = "jpeg", files
        shutil.rmtree(scratch / "pixels")
    read_once(originals)
    read_once(scratch)
    taking_part, works = entries(task, options.peers), []
    for number, entry in enumerate(taking_part):
        kind, folder = folders[entry.reads]
        own = scratch / f"{number} {entry.peer}"
        own.mkdir()
        works.append(
            Work(
                kind=kind,
                folder=str(folder),
                size=task.size,
                batch_size=options.batch_size,
                workers=options.workers,
                repeat=options.repeat,
                scratch=str(own),
            )
        )
    with contestants([entry.peer for entry in taking_part], works) as all_of_them:
        for one, entry in zip(all_of_them, taking_part, strict=True):
            one.result.name = entry.name
        for number in range(options.rounds + 1):
            for one in all_of_them:
                one.turn(options.lead, options.seconds)
                if not number:
                    one.result.forget()
            log(f"{task.name}: round {number} of {options.rounds}")
        return [one.result for one in all_of_them]


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="image folder with one sub-folder per class")
    parser.add_argument("--only", default="", help="run only tasks whose name contains this text")
    parser.add_argument("--peers", default="", help="modules of peers/, comma separated, or all")
    parser.add_argument("--quality", type=int, default=95, help="JPEG quality")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="measured seconds per turn")
    parser.add_argument(
        "--lead", type=float, default=0.7, help="warm-up seconds per turn, not measured"
    )
    parser.add_argument("--times", type=int, default=10, help="copies of each image in a cache")
    parser.add_argument("--repeat", type=int, default=20, help="passes over the images per epoch")
    parser.add_argument("--under", type=Path, help="parent folder of the temporary caches")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clean up, as on Ctrl-C
    fixed = ("quality", "workers", "batch_size", "rounds", "seconds", "lead", "times", "repeat")
    tasks: list[dict[str, Any]] = []
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in fixed},
        "tasks": tasks,
    }
    for task in TASKS:
        if options.only not in task.name:
            continue
        with tempfile.TemporaryDirectory(prefix="feedline-caches-", dir=options.under) as scratch:
            peers = measure(task, options.folder.resolve(), Path(scratch), options)
        tasks.append({"name": task.name, "peers": [asdict(result) for result in peers]})
        print(table(tasks[-1]), flush=True)
        save(results, options.json)
    print(bars(results))


if __name__ == "__main__":
    main()
