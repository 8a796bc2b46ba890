"""Measure opening a cache of 1.3 million images: time and memory, alone and joined with a folder.

    python benchmarks/cache_open.py --json benchmarks/results/cache_open.json

Method: the index of a cache is written with `--samples` entries named like ImageNet's files, with
three resolutions and their shards, and no images. Then, `--rounds` times, in a new process each:

    open        `ImageFolder(cache)`, first with the index dropped from the page cache, then with it
                cached. Bytes read from disk are the kernel's count for the process.
    beside      `DataLoader(dataset, cache=...)` until the engine is chosen: the copies of all files
                are looked up in the cache by name. The dataset is feedline's or torchvision's
                ImageFolder; torchvision's also with its files in another order.
    without     the same without `cache=`, for comparison

Finally a loader with `--workers` workers reads only labels, from this cache and from one of 1300
entries: private memory of a worker after `--batches` batches of each.

Private memory is Private_Dirty in /proc/PID/smaps_rollup, which excludes files: the index is mapped
and shared through the page cache. "MB meanwhile" is the peak rise of the resident memory, mapped
files included.
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
from process_pool import ProcessPool, ProcessState
from report import machine, save, spread, table, versions

from feedline import DataLoader, ImageFolder, __version__
from feedline.sources.folder import folder_store
from feedline.sources.manifest import COLUMNS, ENTRY, INDEX, MANIFEST, Level, Manifest, digest_of
from feedline.sources.store import PathTable, path_starts

PACKAGES = ("feedline", "torch", "torchvision", "numpy", "xxhash")
SIDES = (128, 192, 256)
PER_CLASS = 1300
PER_SHARD = 4096
FEW = 1300
OPEN_S = 0.5
OPEN_MB = 100
WORKER_MB = 2


def class_names(count: int) -> list[str]:
    """Class names like ImageNet's."""
    return [f"n{1440764 + 13511 * number:08d}" for number in range(count)]


def names(samples: int) -> list[list[str]]:
    """File names of each class, in the order of a folder listing."""
    classes = class_names(-(-samples // PER_CLASS))
    files = [sorted(f"{name}_{37 * k}.JPEG" for k in range(PER_CLASS)) for name in classes]
    files[-1] = files[-1][: samples - PER_CLASS * (len(classes) - 1)]
    return files


def make_cache(root: Path, samples: int) -> None:
    """Write the manifest and index of a cache, and flush them to disk."""
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
    """Value of a line in a file of /proc, in kB."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(f"{path} has no {name}")


def own_mb(process: int | str = "self") -> float:
    """Private memory of a process without files, in MB."""
    return kilobytes(f"/proc/{process}/smaps_rollup", "Private_Dirty") / 1024


def measure_call(work: Callable[[], object]) -> dict[str, float]:
    """Run `work`; return its seconds, memory and bytes read from disk."""
    before, read = own_mb(), kilobytes("/proc/self/io", "read_bytes")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    resident = kilobytes("/proc/self/status", "VmRSS")
    start = time.perf_counter()
    value = work()
    seconds = time.perf_counter() - start
    results = {
        "seconds": seconds,
        "own_mb": own_mb() - before,
        "peak_mb": (kilobytes("/proc/self/status", "VmHWM") - resident) / 1024,
        "read_mb": (kilobytes("/proc/self/io", "read_bytes") - read) / 2**20,
    }
    del value
    return results


def open_cache(state: ProcessState, root: str) -> dict[str, float]:
    """In a new process: open a cache."""
    return measure_call(lambda: ImageFolder(root))


def join_cache(state: ProcessState, root: str, samples: int, what: str, cached: bool) -> Any:
    """In a new process: join a dataset with the cache."""
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
            dataset.samples = torchvision_samples(folder, samples)
            if what.endswith("other order"):
                random.Random(0).shuffle(dataset.samples)
        else:
            dataset = ImageFolder(folder)
            dataset.store = folder_store(folder, folder_index(samples))
    options: dict[str, Any] = {"cache": root} if cached else {}
    if not what.startswith("torchvision"):
        options["image_size"] = 112
    return measure_call(lambda: loader_with_engine(dataset, options))


def loader_with_engine(dataset: Any, options: dict[str, Any]) -> DataLoader[Any]:
    """A loader that has chosen its engine."""
    loader: DataLoader[Any] = DataLoader(dataset, 64, **options)
    loader.explain()
    return loader


def torchvision_samples(folder: str, samples: int) -> list[tuple[str, int]]:
    """Samples as torchvision lists a folder."""
    files = names(samples)
    classes = class_names(len(files))
    return [
        (f"{folder}/{name}/{file}", label)
        for label, (name, own) in enumerate(zip(classes, files, strict=True))
        for file in own
    ]


def folder_index(samples: int) -> PathTable:
    """Index as feedline lists a folder."""
    files = names(samples)
    classes = class_names(len(files))
    pairs = zip(classes, files, strict=True)
    text = "".join(f"{name}/{file}\0" for name, own in pairs for file in own).encode()
    blob = np.frombuffer(text, np.uint8)
    labels = np.repeat(np.arange(len(files), dtype=np.int32), [len(own) for own in files])
    return PathTable(blob, path_starts(blob), labels, classes)


class Labels(ImageFolder):
    """Labels of a cache; opens no image."""

    def load(self, item: Any, row: Any) -> None:
        """Write only the label."""
        row[1][()] = self.store.label(item.sample)


def workers_mb(roots: list[Path], workers: int, batches: int) -> list[list[float]]:
    """Private memory of the workers of a loader over each cache, in MB."""
    results = []
    for root in roots:
        with DataLoader(
            Labels(root), 64, image_size=64, num_workers=workers, shuffle=True, seed=0
        ) as loader:
            made = 0
            while made < batches:  # the small cache has shorter epochs
                for _ in loader:
                    made += 1
                    if made == batches:
                        break
            results.append([own_mb(pid) for pid in loader.worker_pids])
    return results


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process."""
    with ProcessPool(1, as_workers=False) as pool:
        return pool.each(function, [arguments])[0]


def measure(cache: Path, small: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds."""
    turns: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        drop_from_cache(cache)
        turns.setdefault("open, from the disk", []).append(in_new_process(open_cache, str(cache)))
        read_once(cache)
        turns.setdefault("open", []).append(in_new_process(open_cache, str(cache)))
        for what in ("feedline's folder", "torchvision's", "torchvision's, other order"):
            for cached in (True, False):
                name = f"{what}, {'cache join_cache it' if cached else 'without'}"
                turn = in_new_process(join_cache, str(cache), options.samples, what, cached)
                turns.setdefault(name, []).append(turn)
        log(f"round {number + 1} of {options.rounds}")
    large, few = workers_mb([cache, small], options.workers, options.batches)
    return {"turns": turns, "worker_mb": {"large": large, "few": few}}


def tables(results: dict[str, Any]) -> str:
    """Results as text, with the targets."""
    rows = [
        [
            name,
            spread([turn["seconds"] for turn in turns]),
            *(spread([turn[key] for turn in turns], 1) for key in ("own_mb", "peak_mb", "read_mb")),
        ]
        for name, turns in results["turns"].items()
    ]
    large, few = results["worker_mb"]["large"], results["worker_mb"]["few"]
    difference = statistics.median(large) - statistics.median(few)
    lines = [
        table(rows, ["what", "seconds", "MB of its own", "MB meanwhile", "MB from the disk"]),
        "",
        f"a worker's own memory, MB: {spread(large, 1)}; with {FEW} samples {spread(few, 1)}",
    ]
    worst = results["turns"]["open, from the disk"] + results["turns"]["open"]
    targets = (
        ("seconds to open", statistics.median(turn["seconds"] for turn in worst), OPEN_S),
        ("MB to open", max(turn["own_mb"] for turn in worst), OPEN_MB),
        ("MB more in a worker", difference, WORKER_MB),
    )
    for what, value, most in targets:
        status = "met   " if value < most else "MISSED"
        lines.append(f"{status} {what}: {value:.3f}, less than {most}")
    return "\n".join(lines)


def log(message: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {message}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--samples", type=int, default=1_300_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--under", type=Path, help="parent folder of the temporary cache")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    fixed = ("samples", "rounds", "workers", "batches")
    with tempfile.TemporaryDirectory(prefix="feedline-open-", dir=options.under) as scratch:
        cache, small = Path(scratch, "large"), Path(scratch, "few")
        make_cache(cache, options.samples)
        make_cache(small, FEW)
        results = {
            "machine": machine(),
            "versions": versions(PACKAGES),
            "settings": {name: getattr(options, name) for name in fixed},
            **measure(cache, small, options),
        }
    print(tables(results))
    save(results, options.json)


if __name__ == "__main__":
    main()
