"""What it takes to open a cache of 1.3 million images: seconds, memory, also beside a folder.

Method: the index of a cache is made of `--samples` entries, named as ImageNet's files are, with
three levels and their shards, and no images. Then, `--rounds` times, each time in a fresh process
that has imported what it needs:

    open        `ImageFolder(cache)`; first with the index dropped from the page cache, then with it
                in there. What was read from the disk is the kernel's count for the process.
    beside      `DataLoader(dataset, cache=...)` up to where it is decided who makes its batches:
                all files' copies are found in the cache by their names. The dataset is feedline's
                or torchvision's ImageFolder; torchvision's with its files in another order, too.
    without     the same without `cache=`, to see what it adds

and once a loader with `--workers` workers whose rows are labels alone, over this cache and over one
of 1300 entries: what a worker holds of its own after `--batches` batches of each, side by side.

Memory of its own is what a process alone has and that is no file's (Private_Dirty in
/proc/PID/smaps_rollup): the index is mapped, and its pages are in the page cache once for all.
"Meanwhile" is by how much the resident memory rose at its peak, mapped files included.

    python benchmarks/cache_open.py --json benchmarks/results/cache_open.json
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from page_cache import drop_from_cache, read_once
from report import machine, save, spread, table, versions

from feedline import DataLoader, ImageFolder, __version__
from feedline.bench.pool import ProcessPool, ProcessState, Send
from feedline.sources.cache_index import COLUMNS, ENTRY, digest_of
from feedline.sources.folder import FolderIndex, folder_store
from feedline.sources.manifest import INDEX, MANIFEST, Level, Manifest
from feedline.sources.path_table import path_starts

PACKAGES = ("feedline", "torch", "torchvision", "numpy", "xxhash")
SIDES = (128, 192, 256)
PER_CLASS = 1300
PER_SHARD = 4096
FEW = 1300
OPEN_S = 0.5
OPEN_MB = 100
WORKER_MB = 2


def class_names(count: int) -> list[str]:
    """As ImageNet calls its classes."""
    return [f"n{1440764 + 13511 * number:08d}" for number in range(count)]


def names(samples: int) -> list[list[str]]:
    """The files of each class, in the order in which a folder lists them."""
    classes = class_names(-(-samples // PER_CLASS))
    files = [sorted(f"{name}_{37 * k}.JPEG" for k in range(PER_CLASS)) for name in classes]
    files[-1] = files[-1][: samples - PER_CLASS * (len(classes) - 1)]
    return files


def make_cache(root: Path, samples: int) -> None:
    """Write the manifest and the index of a cache, and bring them to the disk."""
    classes = class_names(-(-samples // PER_CLASS))
    files = names(samples)
    paths = [
        f"{name}/{file}".encode() for name, own in zip(classes, files, strict=True) for file in own
    ]
    numbers = np.arange(samples)
    columns: dict[str, np.ndarray] = {
        "labels": np.repeat(np.arange(len(classes)), [len(own) for own in files]),
        "keys": numbers,
        "sizes": np.broadcast_to(np.array([375, 500], np.uint32), (samples, 2)),
        "name_ends": np.cumsum([len(path) for path in paths]),
        "stamps": numbers.astype(np.uint64),
        "names": np.frombuffer(b"".join(paths), np.uint8),
    }
    assert set(COLUMNS) < set(columns)
    levels = []
    for side in SIDES:
        length = 7 * side * side // 16
        shards, places = np.divmod(numbers, PER_SHARD)
        entries = [shards, places * length, np.full(samples, length), numbers]
        columns[f"level-{side}"] = np.stack(entries, axis=1).astype(ENTRY[0])
        sizes = [length * PER_SHARD] * -(-samples // PER_SHARD)
        levels.append(Level(side=side, quality=95, shards=tuple(sizes)))
    (root / INDEX).mkdir(parents=True)
    for name, column in columns.items():
        with open(root / INDEX / f"{name}.npy", "wb") as file:
            np.save(file, column)
            file.flush()
            os.fsync(file.fileno())
    manifest = Manifest(
        format="webdataset",
        samples=samples,
        levels=tuple(levels),
        classes=tuple(classes),
        label=("int64", ()),
        exif=False,
        fingerprint="0" * 16,
        source=("folder", "/data/train"),
        samples_in_source=samples,
        per_shard=PER_SHARD,
        digests={name: digest_of(root / INDEX / f"{name}.npy") for name in columns},
        feedline=__version__,
    )
    (root / MANIFEST).write_text(manifest.as_text())


def kilobytes(path: str, name: str) -> int:
    """A line of one of the kernel's tables."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(f"{path} has no {name}")


def own_mb(process: int | str = "self") -> float:
    """Memory that a process alone has, and that is no file's."""
    return kilobytes(f"/proc/{process}/smaps_rollup", "Private_Dirty") / 1024


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Do something: its seconds, the memory that it takes, and what was read from the disk."""
    before, read = own_mb(), kilobytes("/proc/self/io", "read_bytes")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    resident = kilobytes("/proc/self/status", "VmRSS")
    start = time.perf_counter()
    held = work()
    seconds = time.perf_counter() - start
    found = {
        "seconds": seconds,
        "own_mb": own_mb() - before,
        "peak_mb": (kilobytes("/proc/self/status", "VmHWM") - resident) / 1024,
        "read_mb": (kilobytes("/proc/self/io", "read_bytes") - read) / 2**20,
    }
    del held
    return found


def open_it(state: ProcessState, send: Send, root: str) -> dict[str, float]:
    """In a fresh process: open a cache."""
    return measured(lambda: ImageFolder(root))


def beside(
    state: ProcessState, send: Send, root: str, samples: int, what: str, cached: bool
) -> Any:
    """In a fresh process: join a dataset of as many files with the cache."""
    import torchvision
    from torchvision import transforms

    with tempfile.TemporaryDirectory() as folder:
        one = Path(folder, "n0", "n0_0.JPEG")
        one.parent.mkdir()
        one.touch()
        dataset: Any
        if what.startswith("torchvision"):
            steps = [transforms.RandomResizedCrop(112), transforms.ToTensor()]
            dataset = torchvision.datasets.ImageFolder(folder, transforms.Compose(steps))
            dataset.samples = listed(folder, samples)
            if what.endswith("other order"):
                random.Random(0).shuffle(dataset.samples)
        else:
            dataset = ImageFolder(folder)
            dataset.store = folder_store(folder, folder_index(samples))
    options: dict[str, Any] = {"cache": root} if cached else {}
    if not what.startswith("torchvision"):
        options["image_size"] = 112
    return measured(lambda: decided(dataset, options))


def decided(dataset: Any, options: dict[str, Any]) -> DataLoader[Any]:
    """A loader that knows who makes its batches."""
    loader: DataLoader[Any] = DataLoader(dataset, 64, **options)
    loader.explain()
    return loader


def listed(folder: str, samples: int) -> list[tuple[str, int]]:
    """As torchvision lists a folder."""
    files = names(samples)
    classes = class_names(len(files))
    return [
        (f"{folder}/{name}/{file}", label)
        for label, (name, own) in enumerate(zip(classes, files, strict=True))
        for file in own
    ]


def folder_index(samples: int) -> FolderIndex:
    """As feedline lists a folder."""
    files = names(samples)
    classes = class_names(len(files))
    pairs = zip(classes, files, strict=True)
    text = "".join(f"{name}/{file}\0" for name, own in pairs for file in own).encode()
    blob = np.frombuffer(text, np.uint8)
    labels = np.repeat(np.arange(len(files), dtype=np.int32), [len(own) for own in files])
    return FolderIndex(blob, path_starts(blob), labels, classes)


class Labels(ImageFolder):
    """The labels of a cache without opening an image."""

    def load(self, item: Any, row: Any) -> None:
        """Write the label alone."""
        row[1][()] = self.store.label(item.sample)


def workers_mb(roots: list[Path], workers: int, batches: int) -> list[list[float]]:
    """Memory of the workers of a loader over each cache, in MB."""
    found = []
    for root in roots:
        with DataLoader(
            Labels(root), 64, image_size=64, num_workers=workers, shuffle=True, seed=0
        ) as loader:
            made = 0
            while made < batches:  # a small cache's epochs end earlier
                for _ in loader:
                    made += 1
                    if made == batches:
                        break
            found.append([own_mb(pid) for pid in loader.worker_pids])
    return found


def fresh(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own."""
    with ProcessPool(1, as_workers=False) as pool:
        return pool.each(function, [arguments])[0]


def measure(cache: Path, small: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All figures."""
    turns: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        drop_from_cache(cache)
        turns.setdefault("open, from the disk", []).append(fresh(open_it, str(cache)))
        read_once(cache)
        turns.setdefault("open", []).append(fresh(open_it, str(cache)))
        for what in ("feedline's folder", "torchvision's", "torchvision's, other order"):
            for cached in (True, False):
                name = f"{what}, {'cache beside it' if cached else 'without'}"
                turn = fresh(beside, str(cache), options.samples, what, cached)
                turns.setdefault(name, []).append(turn)
        say(f"round {number + 1} of {options.rounds}")
    large, few = workers_mb([cache, small], options.workers, options.batches)
    return {"turns": turns, "worker_mb": {"large": large, "few": few}}


def tables(found: dict[str, Any]) -> str:
    """The figures, and what feedline is held to."""
    rows = [
        [
            name,
            spread([turn["seconds"] for turn in turns]),
            *(spread([turn[key] for turn in turns], 1) for key in ("own_mb", "peak_mb", "read_mb")),
        ]
        for name, turns in found["turns"].items()
    ]
    large, few = found["worker_mb"]["large"], found["worker_mb"]["few"]
    grown = statistics.median(large) - statistics.median(few)
    lines = [
        table(rows, ["what", "seconds", "MB of its own", "MB meanwhile", "MB from the disk"]),
        "",
        f"a worker's own memory, MB: {spread(large, 1)}; with {FEW} samples {spread(few, 1)}",
    ]
    worst = found["turns"]["open, from the disk"] + found["turns"]["open"]
    bars = (
        ("seconds to open", statistics.median(turn["seconds"] for turn in worst), OPEN_S),
        ("MB to open", max(turn["own_mb"] for turn in worst), OPEN_MB),
        ("MB more in a worker", grown, WORKER_MB),
    )
    for what, value, most in bars:
        said = "met   " if value < most else "MISSED"
        lines.append(f"{said} {what}: {value:.3f}, less than {most}")
    return "\n".join(lines)


def say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=1_300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--under", type=Path, help="where the cache is made")
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    fixed = ("samples", "rounds", "workers", "batches")
    with tempfile.TemporaryDirectory(prefix="feedline-open-", dir=options.under) as scratch:
        cache, small = Path(scratch, "large"), Path(scratch, "few")
        make_cache(cache, options.samples)
        make_cache(small, FEW)
        found = {
            "machine": machine(),
            "versions": versions(PACKAGES),
            "settings": {name: getattr(options, name) for name in fixed},
            **measure(cache, small, options),
        }
    print(tables(found))
    save(found, options.json)


if __name__ == "__main__":
    main()
