"""Compare feedline.DataLoader with torch.utils.data.DataLoader on the same dataset objects.

    python benchmarks/any_dataset.py FOLDER --json benchmarks/results/any_dataset.json
    python benchmarks/any_dataset.py FOLDER --megapixels 12 --json benchmarks/results/large.json

Method: for each dataset and number of workers the two loaders alternate, `--rounds` times, in one
process. A turn builds the loader, measures the time from `iter()` to the first batch, then counts
samples for `--seconds`, epoch after epoch, with `persistent_workers=True`. Prints medians over the
turns and the median ratio of consecutive turns. Finally a user-defined dataset runs for `--epochs`
epochs, with persistent workers and with new workers each epoch, and memory (PSS of all processes)
and file descriptors after epoch 5 are compared with those after the last epoch.

Datasets: `images`, torchvision's ImageFolder with RandomResizedCrop(224), flip, ToTensor and
Normalize, which feedline fuses; `work`, a user-defined dataset with 0.5 ms of Python and torch
per sample; `tensors`, a TensorDataset of 50,000 tiny images; `tiny`, the same images in a
user-defined dataset, so that almost all time is overhead of the loader.

`--megapixels 12` measures only `images`, on 48 mosaics of FOLDER's images (4:3, JPEG quality 90).

Caveats: files are in the page cache; batches are not used, so no training competes for the cores;
the first batch of feedline's first loader includes imports.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from PIL import Image, ImageOps
from report import machine, save, spread, table, versions
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import feedline

TINY = 50_000
PIPELINE = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
)


class Work(Dataset[Any]):
    """User-defined dataset with Python and torch work per sample; images of 150 kB."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, str]:
        image = torch.full((3, 112, 112), float(index))
        for _ in range(40):
            image = image * 1.01 + sum(range(200))
        return image, index, str(index)


class Tiny(Dataset[Any]):
    """User-defined dataset of tiny images in memory."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[index], self.labels[index]


def turn(make: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Samples per second, and seconds from `iter()` to the first batch."""
    loader = make()
    start = time.perf_counter()
    batches = iter(loader)
    first = next(batches)
    to_first = time.perf_counter() - start
    del first
    start, count = time.perf_counter(), 0
    while True:
        for batch in batches:
            count += len(batch[1])
            elapsed = time.perf_counter() - start
            if elapsed > seconds:
                del batches
                if isinstance(loader, feedline.DataLoader):
                    loader.close()
                return count / elapsed, to_first
        batches = iter(loader)


def compare(
    dataset: Any, batch_size: int, workers: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure both loaders on a dataset, alternately."""
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": True,
        "num_workers": workers,
        "persistent_workers": workers > 0,
    }
    makers: dict[str, Callable[[], Any]] = {
        "torch": lambda: TorchDataLoader(dataset, **arguments),
        "feedline": lambda: feedline.DataLoader(dataset, **arguments),
    }
    rates: dict[str, list[float]] = {name: [] for name in makers}
    firsts: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(options.rounds):
        for name, make in makers.items():
            rate, first = turn(make, options.seconds)
            rates[name].append(rate)
            firsts[name].append(first)
    ratios = [
        own / torch_rate for own, torch_rate in zip(rates["feedline"], rates["torch"], strict=True)
    ]
    return {"samples_s": rates, "first_batch_s": firsts, "ratio": ratios}


def mosaics(folder: Path, to: Path, megapixels: float) -> Path:
    """Write 48 large images, mosaics of the images in a folder."""
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    width, side = height * 4 // 3, 500
    files = itertools.cycle(sorted(folder.rglob("*.[jJ]*")))
    (to / "all").mkdir(parents=True)
    for number in range(48):
        large = Image.new("RGB", (width, height))
        for top, left in itertools.product(range(0, height, side), range(0, width, side)):
            with Image.open(next(files)) as image:
                large.paste(ImageOps.fit(image.convert("RGB"), (side, side)), (left, top))
        large.save(to / "all" / f"{number}.jpg", quality=90)
    return to


def tree_mb() -> float:
    """PSS of this process and its descendants, in MB."""
    here = psutil.Process()
    total = 0.0
    for process in [here, *here.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss / 1e6
        except psutil.Error:
            continue
    return total


def growth(dataset: Any, epochs: int, *, persistent: bool) -> dict[str, Any]:
    """Memory and file descriptors after 5 epochs and after the last."""
    marks = []
    with feedline.DataLoader(
        dataset, batch_size=64, shuffle=True, num_workers=2, persistent_workers=persistent
    ) as loader:
        for epoch in range(epochs):
            for step, _ in enumerate(loader):
                if step == 8:  # leaving early is the harder case
                    break
            if epoch in (4, epochs - 1):
                marks.append({"mb": tree_mb(), "fds": len(os.listdir("/proc/self/fd"))})
    return {"after_5": marks[0], "after_all": marks[1], "epochs": epochs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="image folder with one sub-folder per class")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--megapixels", type=float, help="measure only mosaics of this size")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.megapixels:
        with tempfile.TemporaryDirectory() as scratch:
            large = mosaics(Path(options.folder), Path(scratch) / "large", options.megapixels)
            result = compare(ImageFolder(str(large), PIPELINE), 16, 2, options)
        print({name: spread(rates, 0) for name, rates in result["samples_s"].items()})
        print("ratio", spread(result["ratio"], 2))
        about = {"machine": machine(), "versions": versions(["torch", "pillow", "feedline"])}
        save({**about, "megapixels": options.megapixels, **result}, options.json)
        return
    images = torch.randint(0, 255, (TINY, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (TINY,))
    tasks = [
        ("images", ImageFolder(options.folder, PIPELINE), 64, (2,)),
        ("work", Work(), 64, (1, 2, 4)),
        ("tensors", TensorDataset(images, labels), 128, (0, 1, 2, 4)),
        ("tiny", Tiny(images, labels), 128, (0, 1, 2, 4)),
    ]
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(["torch", "torchvision", "pillow", "feedline"]),
        "tasks": {},
    }
    rows = []
    for name, dataset, batch_size, counts in tasks:
        for workers in counts:
            print(f"{name}, {workers} workers ...", file=sys.stderr, flush=True)
            result = compare(dataset, batch_size, workers, options)
            results["tasks"][f"{name} {workers}"] = result
            rates, firsts = result["samples_s"], result["first_batch_s"]
            rows.append(
                [
                    f"{name}, {workers}",
                    f"{median(rates['torch']):.0f}",
                    f"{median(rates['feedline']):.0f}",
                    spread(result["ratio"], 2),
                    f"{1000 * median(firsts['torch']):.0f}",
                    f"{1000 * median(firsts['feedline']):.0f}",
                ]
            )
    heads = ["dataset, workers", "torch/s", "feedline/s", "ratio", "first ms, torch", "feedline"]
    print(table(rows, heads))
    for name, persistent in (("workers that live on", True), ("new each epoch", False)):
        print(f"{name}, {options.epochs} epochs ...", file=sys.stderr, flush=True)
        usage = growth(Work(), options.epochs, persistent=persistent)
        results[name] = usage
        early, late = usage["after_5"], usage["after_all"]
        print(
            f"{name}: {early['mb']:.0f} MB and {early['fds']} descriptors after 5 epochs, "
            f"{late['mb']:.0f} MB and {late['fds']} after {options.epochs}"
        )
    save(results, options.json)


if __name__ == "__main__":
    main()
