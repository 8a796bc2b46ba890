"""What a training step on a GPU sees of its loader.

Method: a torchvision model (ResNet-50) trains in bfloat16 (autocast), channels_last, by SGD, in one
process; its batches come in turn, `--rounds` times, from

    free           batches that lie on the device already, again and again: the limit
    feedline       `DataLoader(..., device=...)`: copied and normalised on a stream of its own
    feedline, cache
                   the same from copies of `--levels`, which are made beforehand
    torch          torch's DataLoader: v2 transforms to uint8, pinned, copied without blocking,
                   normalised on the device; persistent workers
    torch, float   the same, but normalised floats are made by the workers
    recognised     `DataLoader(...)` over torchvision's ImageFolder, with `device`: pixels travel as
                   uint8, and its table of values is looked up on a stream of its own
    recognised, float
                   the same without `device`, pinned, copied without blocking: floats travel

`--lead` seconds use up what was made ahead and let cuDNN choose, then `--seconds` are counted by
the clock, with a synchronisation at both ends and none between. A CUDA event is recorded when a
batch is ready for the step (behind its copy and its normalisation, on the step's stream) and one
behind the optimiser. From one step's end to the next one's beginning the device waits for data:
"wait". From beginning to end it works: "busy" is that share of the whole. feedline's own split of
the step is in the JSON file, to be compared.

Copies: one batch of uint8 pixels in a memfd block, as the slots of feedline's workers are, to the
device, pageable and registered by cudaHostRegister: bandwidth by CUDA events, and for how long a
call holds up the host. "Behind work" is the time that such copies on a second stream add to matrix
products on the first, as a share of the copies' own time: 0% is hidden, 100% is not.

First steps: in a process of its own, with cudnn.benchmark off, on, and on behind the warm-up that
`feedline train` does, random batches of each size in turn; every step is synchronised. The first
size includes the start of CUDA's libraries. What is aimed at: warmed, at most 1.5 of a later step.

Caveats: one machine's figures. A step whose kernels the host launches too slowly counts as busy;
the row "free" has the same fault, so compare with it. A folder of few images is read from the page
cache; each is linked several times so that an epoch is long (`--pictures`). torch draws other
crops. Without a GPU there are no copies to measure; `--smoke` shows only that the program runs.

    python benchmarks/gpu_overlap.py [FOLDER] --json result.json
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
    """What a loader is asked for. `notes` takes what it has to say of itself."""

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
    """One source's turn."""
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
            begun = mark(device)
            training.step(images, labels)
            marks.append((begun, mark(device)))
        synchronize(device)
        spent = time.perf_counter() - start
    gaps = [ms(marks[k][1], marks[k + 1][0]) for k in range(len(marks) - 1)]
    busy = sum(ms(begun, ended) for begun, ended in marks)
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
    """A folder of at least so many pictures: links to those that there are."""
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
    """The tables."""
    steps, rates = result["steps"], []
    for size in sorted({row["size"] for row in steps}):
        of = {n: [r for r in steps if (r["source"], r["size"]) == (n, size)] for n in SOURCES}
        for name, rows in of.items():
            if rows:
                ratios = [r["images_s"] / f["images_s"] for r, f in zip(rows, of["free"])]  # noqa: B905
                columns = [[r[key] for r in rows] for key in ("images_s", "wait_ms", "busy")]
                shown = [spread(values, d) for values, d in zip(columns, (0, 2, 3), strict=True)]
                rates.append([size, name, shown[0], spread(ratios), *shown[1:]])
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
    parser.add_argument("folder", nargs="?", type=Path, help="one sub-folder a class; else made")
    parser.add_argument("--sizes", type=int, nargs="+", default=[112, 160, 224])
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--levels", type=int, nargs="+", default=[128, 192, 256], help="in px")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--pictures", type=int, default=20480, help="of an epoch, at least")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--lead", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="a tiny run, on the CPU if need be")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    demo = DemoSet()
    if options.smoke:
        options.sizes, options.model, options.batch_size = [32, 48], "resnet18", 4
        options.levels = [32, 64]
        options.workers, options.pictures, options.seconds, options.lead = 2, 64, 0.5, 0.1
        demo = DemoSet(num_classes=2, train_per_class=4, val_per_class=1)
    elif device.type == "cpu":
        parser.error("there is no CUDA device; --smoke tries the program without one")
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
                    save(result, options.json)  # a run that is cut short leaves what it has
        spawn = multiprocessing.get_context("spawn")
        for mode in MODES:
            with ProcessPoolExecutor(1, mp_context=spawn) as alone:
                given = (options.model, options.sizes, options.batch_size, device, mode)
                result["first_steps"] += alone.submit(first_steps, *given).result()
        if device.type == "cuda":
            result["copies"] = copies(device, options.batch_size * max(options.sizes) ** 2 * 3)
        save(result, options.json)
        show(result)


if __name__ == "__main__":
    main()
