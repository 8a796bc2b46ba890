"""feedline over its caches, against what users could read the same copies with.

Method: for each work a cache is built in each format, of the folder's images. The others get files
of the same pixels, size and quality, without the restart markers that feedline's copies have and
that slow other decoders: torch's loaders read them as they are, FFCV from a file of its own that
holds their bytes (of raw levels, their pixels), the `webdataset` package from shards of its own.
Bare processes do only the work of feedline's workers on the WebDataset cache
(`peers/bare_rows.py`). Beside them feedline reads the originals. Each contestant
runs in a process of its own, they are measured in turn, `--rounds` times (A B C A B C): `--lead`
seconds use up what was made ahead, `--seconds` are counted, then all its processes come to rest. A
first round warms up and is left out. Batches are uint8, files come from the page cache. Ratios are
taken round by round. Works:

    256 px JPEG, 128 px JPEG    of `--quality`, at 224 and 112 px: crops of 25 to 100% of the area
    256 px raw, 128 px raw      the same without a decode

Each image is in the folder `--times` times, so that an epoch of few images is no matter of its end.

Caveats: one machine's figures. An epoch has `--repeat` times the images where a peer can be told
so; feedline's and WebDataset's have those there are. torch + Pillow, torch float32 make floats,
because their users do; each bar counts the quickest of its group. Pixels of FFCV and DALI are made
with less care (see their files), and keep the advantage of it.

    python benchmarks/caches_versus.py FOLDER --json benchmarks/results/caches.json
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
    """Copies of a side in pixels, and the size of the rows made of them."""

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
    """A contestant: what the table calls it, its module, and what it reads.

    Args:
        reads: a format: the cache as a whole; "files": copies without restart markers, or raw ones;
            "originals": what the caches were made of.
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
    """Who takes part; `only`: peers' modules, comma separated, or all."""
    wanted = only.split(",") if only else None
    # Those that are compared most closely come next to one another.
    entries = [OURS[0], BARE, *OURS[1:], FFCV, *(OF_RAW if task.raw else OF_JPEGS), ORIGINALS]
    return [entry for entry in entries if wanted is None or entry.peer in wanted]


def measure(task: Task, originals: Path, scratch: Path, options: Any) -> list[Result]:
    """All contestants at one work, in turn."""
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
            say(f"{task.name}: round {number} of {options.rounds}")
        return [one.result for one in all_of_them]


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder with one sub-folder a class")
    parser.add_argument("--only", default="", help="part of a work's name, to run less")
    parser.add_argument("--peers", default="", help="modules of peers/, comma separated; all")
    parser.add_argument("--quality", type=int, default=95, help="of the JPEGs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="counted in each turn")
    parser.add_argument("--lead", type=float, default=0.7, help="seconds before counting begins")
    parser.add_argument("--times", type=int, default=10, help="each image so often in a cache")
    parser.add_argument("--repeat", type=int, default=20, help="times the images in an epoch")
    parser.add_argument("--under", type=Path, help="where the caches are made")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cleans up, as Ctrl-C does
    fixed = ("quality", "workers", "batch_size", "rounds", "seconds", "lead", "times", "repeat")
    tasks: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "settings": {name: getattr(options, name) for name in fixed},
        "tasks": tasks,
    }
    for task in TASKS:
        if options.only not in task.name:
            continue
        with tempfile.TemporaryDirectory(prefix="feedline-caches-", dir=options.under) as scratch:
            results = measure(task, options.folder.resolve(), Path(scratch), options)
        tasks.append({"name": task.name, "peers": [asdict(result) for result in results]})
        print(table(tasks[-1]), flush=True)
        save(found, options.json)
    print(bars(found))


if __name__ == "__main__":
    main()
