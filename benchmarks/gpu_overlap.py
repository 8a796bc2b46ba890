"""Measure how long a GPU training step waits for each loader.

    python benchmarks/gpu_overlap.py [FOLDER] --json result.json

Method: a torchvision model (ResNet-50) trains in bfloat16 (autocast), channels_last, with SGD, in
one process. Its batches come alternately, for `--rounds` rounds, from

    free           batches that are already on the device, reused: the upper limit
    feedline       `DataLoader(..., device=...)`: copied and normalised on its own stream
    feedline, cache
                   the same from resized copies (`--levels`), built beforehand
    torch          torch's DataLoader: v2 transforms to uint8, pinned, non-blocking copy, normalised
                   on the device; persistent workers
    torch, float   the same, but workers produce normalised floats
    recognised     `DataLoader(...)` over torchvision's ImageFolder with `device`: uint8 is copied,
                   and the conversion table is applied on its own stream
    recognised, float
                   the same without `device`: pinned floats, non-blocking copy

`--lead` seconds consume prefetched batches and let cuDNN choose kernels; then `--seconds` are
measured, synchronised only at both ends. A CUDA event is recorded when a batch is ready for the
step (after copy and normalisation, on the step's stream) and one after the optimizer. The device
waits for data from the end of a step to the beginning of the next ("wait"); "busy" is the remaining
share. The JSON file also holds feedline's own timing of the step, for comparison.

Copies: one uint8 batch in a memfd block, like the buffer slots of feedline's workers, is copied to
the device, pageable and registered with cudaHostRegister. Prints the bandwidth from CUDA events and
how long a call blocks the host. "Behind work" is the time that such copies on a second stream add
to matrix products on the first, as a share of the copies' own time: 0% is fully hidden.

First steps: in a new process, with cudnn.benchmark off, on, and on after the warm-up of `feedline
train`, with random batches of each size; every step is synchronised. The first size includes CUDA's
start. Target: with the warm-up, at most 1.5 times a later step.

Caveats: results of one machine. A step bound by kernel launches counts as busy; this also affects
"free", so compare with it. A small folder is read from the page cache; images are linked several
times so that an epoch is long enough (`--pictures`). torch draws other crops. Without a GPU no
copies are measured; `--smoke` only checks that the program runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torchvision
from gpu_device import (
    FIRST,
    MODES,
    Training,
    copies,
    first_steps,
    mark,
    ms,
    random_batch,
    synchronize,
)
from report import machine, save, spread, table, versions
from torchvision.transforms import v2

from feedline import DataLoader, ImageFolder, TrainCrop, build_cache
from feedline.cli.demo_set import DemoSet, write_demo_set
from feedline.engine.normalise import IMAGENET_MEAN, IMAGENET_STD, Normalise
from feedline.system import usable_cores

SCALE = (0.25, 1.0)


@dataclass(frozen=True)
class Work:
    """Request for a loader; `notes` receives its timing report."""

    folder: Path
    cache: Path
    size: int
    batch_size: int
    workers: int
    device: torch.device
    notes: dict[str, Any]


Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def free(work: Work) -> Batches:
    kept = [random_batch(work.size, work.batch_size, work.device) for _ in range(4)]
    while True:
        yield from kept


def feedline(work: Work, cached: bool = False) -> Batches:
    with DataLoader(
        ImageFolder(work.cache if cached else work.folder, TrainCrop(scale=SCALE)),
        work.batch_size,
        image_size=work.size,
        num_workers=work.workers,
        drop_last=True,
        device=work.device,
        dtype=torch.bfloat16,
    ) as loader:
        try:
            while True:
                yield from loader
        finally:
            work.notes["split"] = asdict(loader.timing.totals().mean())


def stock(work: Work, floats: bool = False) -> Batches:
    steps = [v2.RandomResizedCrop(work.size, SCALE), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    if floats:
        steps.append(v2.ToDtype(torch.float32, scale=True))
        steps.append(v2.Normalize(IMAGENET_MEAN, IMAGENET_STD))
    loader = torch.utils.data.DataLoader(
        torchvision.datasets.ImageFolder(work.folder, v2.Compose(steps)),
        work.batch_size,
        shuffle=True,
        num_workers=work.workers,
        pin_memory=work.device.type == "cuda",
        persistent_workers=True,
        drop_last=True,
    )
    normalise = Normalise(dtype=torch.bfloat16)
    constants = normalise.constants(work.device)
    while True:
        for images, labels in loader:
            images = images.to(work.device, non_blocking=True)
            images = images.contiguous(memory_format=torch.channels_last)
            images = images.to(torch.bfloat16) if floats else normalise(images, constants)
            yield images, labels.to(work.device, non_blocking=True)


def recognised(work: Work, floats: bool = False) -> Batches:
    steps = [v2.RandomResizedCrop(work.size, SCALE), v2.RandomHorizontalFlip(), v2.ToImage()]
    steps.append(v2.ToDtype(torch.float32, scale=True))
    steps.append(v2.Normalize(IMAGENET_MEAN, IMAGENET_STD))
    with DataLoader(
        torchvision.datasets.ImageFolder(work.folder, v2.Compose(steps)),
        work.batch_size,
        shuffle=True,
        num_workers=work.workers,
        pin_memory=work.device.type == "cuda",
        persistent_workers=True,
        drop_last=True,
        device=None if floats else work.device,
    ) as loader:
        while True:
            for images, labels in loader:
                images = images.to(work.device, non_blocking=True)
                images = images.to(torch.bfloat16, memory_format=torch.channels_last)
                yield images, labels.to(work.device, non_blocking=True)


SOURCES: dict[str, Callable[[Work], Batches]] = {
    "free": free,
    "feedline": feedline,
    "feedline, cache": lambda work: feedline(work, cached=True),
    "torch": stock,
    "torch, float": lambda work: stock(work, floats=True),
    "recognised": recognised,
    "recognised, float": lambda work: recognised(work, floats=True),
}


def measure(name: str, work: Work, training: Training, lead: float, seconds: float) -> dict:
    """One turn of one source."""
    device, marks = work.device, []
    began = time.perf_counter()
    with closing(SOURCES[name](work)) as batches:
        training.step(*next(batches))
        synchronize(device)
        first_s = time.perf_counter() - began
        while time.perf_counter() - began < first_s + lead:
            training.step(*next(batches))
        synchronize(device)
        start = time.perf_counter()
        while not marks or time.perf_counter() - start < seconds:
            images, labels = next(batches)
            start = mark(device)
            training.step(images, labels)
            marks.append((start, mark(device)))
        synchronize(device)
        spent = time.perf_counter() - start
    gaps = [ms(marks[k][1], marks[k + 1][0]) for k in range(len(marks) - 1)]
    busy = sum(ms(start, end) for start, end in marks)
    return {
        "source": name,
        "size": work.size,
        "steps": len(marks),
        "images_s": len(marks) * work.batch_size / spent,
        "wait_ms": mean(gaps) if gaps else 0.0,
        "busy": busy / ms(marks[0][0], marks[-1][1]),
        "first_batch_s": first_s,
        **work.notes,
    }


def pictures(folder: Path | None, wanted: int, demo: DemoSet, scratch: Path) -> Path:
    """Folder of at least `wanted` images, with links to the existing ones."""
    if folder is None:
        folder = scratch / "demo"
        write_demo_set(folder, demo)
        folder = folder / "train"
    paths = [path for path in sorted(folder.glob("*/*")) if path.is_file()]
    for number in range(max(wanted, len(paths))):
        path = paths[number % len(paths)].resolve()
        link = scratch / "pictures" / path.parent.name / f"{number}{path.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(path, link)
    return scratch / "pictures"


def show(result: dict) -> None:
    """Print the tables."""
    steps, rates = result["steps"], []
    for size in sorted({row["size"] for row in steps}):
        of = {n: [r for r in steps if (r["source"], r["size"]) == (n, size)] for n in SOURCES}
        for name, rows in of.items():
            if rows:
                ratios = [r["images_s"] / f["images_s"] for r, f in zip(rows, of["free"])]  # noqa: B905
                columns = [[r[key] for r in rows] for key in ("images_s", "wait_ms", "busy")]
                printed = [spread(values, d) for values, d in zip(columns, (0, 2, 3), strict=True)]
                rates.append([size, name, printed[0], spread(ratios), *printed[1:]])
    print(table(rates, ["px", "source", "images/s", "of free", "wait ms/step", "busy"]), "\n")
    headers = ["memory", "MiB", "GB/s", "host ms/copy", "behind work", "registering ms"]
    print(table([[_cell(v) for v in row.values()] for row in result["copies"]], headers), "\n")
    rows = [
        [r["size"], r["cudnn"], *map(_cell, (*r["first"], r["later"]))]
        for r in result["first_steps"]
    ]
    names = [f"step {k + 1}" for k in range(FIRST)]
    print(table(rows, ["px", "cudnn.benchmark", *names, "later, ms"]), flush=True)


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="image folder with one sub-folder per class; default: generated",
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[112, 160, 224])
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument(
        "--levels",
        type=int,
        nargs="+",
        default=[128, 192, 256],
        help="resolutions of the cache, in pixels",
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument(
        "--pictures", type=int, default=20480, help="minimum number of images per epoch"
    )
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--lead", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="tiny run, also on the CPU, to check that the program works",
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    demo = DemoSet()
    if options.smoke:
        options.sizes, options.model, options.batch_size = [32, 48], "resnet18", 4
        options.levels = [32, 64]
        options.workers, options.pictures, options.seconds, options.lead = 2, 64, 0.5, 0.1
        demo = DemoSet(num_classes=2, train_per_class=4, val_per_class=1)
    elif device.type == "cpu":
        parser.error("no CUDA device found. Use --smoke to run the program without one")
    torch.backends.cudnn.benchmark = True
    result: dict[str, Any] = {
        "machine": machine(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "versions": versions(["torch", "torchvision", "numpy", "pillow"]),
        "options": {name: str(value) for name, value in vars(options).items()},
        "steps": [],
        "copies": [],
        "first_steps": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = pictures(options.folder, options.pictures, demo, Path(scratch))
        cache = Path(scratch) / "cache"
        if "feedline, cache" in options.sources:
            build_cache(folder, cache, options.levels, workers=options.workers)
        work = Work(folder, cache, 0, options.batch_size, options.workers, device, {})
        training = Training(options.model, device)
        for _ in range(options.rounds):
            for size in options.sizes:
                for name in options.sources:
                    turn = Work(**{**vars(work), "size": size, "notes": {}})
                    row = measure(name, turn, training, options.lead, options.seconds)
                    result["steps"].append(row)
                    print({key: _cell(value) for key, value in row.items()}, flush=True)
                    # Save after each turn, in case the run is interrupted.
                    save(result, options.json)
        spawn = multiprocessing.get_context("spawn")
        for mode in MODES:
            with ProcessPoolExecutor(1, mp_context=spawn) as alone:
                arguments = (options.model, options.sizes, options.batch_size, device, mode)
                result["first_steps"] += alone.submit(first_steps, *arguments).result()
        if device.type == "cuda":
            result["copies"] = copies(device, options.batch_size * max(options.sizes) ** 2 * 3)
        save(result, options.json)
        show(result)


if __name__ == "__main__":
    main()
