"""Compare timm's `create_loader` with feedline's for the same arguments, in images per second.

    python benchmarks/timm_loader.py FOLDER [--rounds N] [--json FILE]

FOLDER/CLASS/*.jpg, read as timm's ImageDataset; 2 workers, batches of 32, 224 px, timm's
PrefetchLoader on the CPU. The loaders alternate: each is built, one epoch is read as a warm-up,
then whole epochs are timed for at least three seconds. Prints the median of the rounds and the
range of the ratio, and for evaluation the mean and largest pixel difference in grey levels of 255.

Caveats: the training process only takes batches; the ratio depends on the size of the images.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm.data
import torch
from report import machine, save, table, versions

from feedline.integrations.timm import create_loader

SIZE, BATCH, TIMED_S = (3, 224, 224), 32, 3.0
COMMON: dict[str, Any] = {"num_workers": 2, "device": torch.device("cpu")}
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "evaluation": dict,
    "training": lambda: {"is_training": True},
    "training, RandAugment, random erasing": lambda: {
        "is_training": True,
        "auto_augment": "rand-m9-mstd0.5",
        "re_prob": 0.25,
    },
    "training, mixup in the collate": lambda: {
        "is_training": True,
        "collate_fn": timm.data.FastCollateMixup(mixup_alpha=0.2, num_classes=10),
    },
    "training, no prefetcher": lambda: {"is_training": True, "use_prefetcher": False},
}


def build(create: Callable[..., Any], folder: Path, case: str) -> Any:
    dataset = timm.data.create_dataset("", root=str(folder))
    return create(dataset, SIZE, BATCH, **COMMON, **CASES[case]())


def rate(create: Callable[..., Any], folder: Path, case: str) -> float:
    """Images per second of whole epochs, after one epoch of warm-up."""
    loader = build(create, folder, case)
    sum(1 for _ in loader)
    begin, images = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begin) < TIMED_S:
        images += sum(len(labels) for _, labels in loader)
    return images / elapsed


def difference(folder: Path) -> tuple[float, float]:
    """Mean and largest pixel difference in evaluation, in grey levels."""
    mean, largest = [], 0.0
    std = torch.tensor(timm.data.IMAGENET_DEFAULT_STD).view(3, 1, 1) * 255
    loaders = [build(create, folder, "evaluation") for create in (create_loader, timm_create)]
    for (ours, labels), (theirs, expected) in zip(*loaders, strict=True):
        assert torch.equal(labels, expected)
        levels = (ours - theirs).abs() * std
        mean.append(float(levels.mean()))
        largest = max(largest, float(levels.max()))
    return statistics.mean(mean), largest


timm_create = timm.data.create_loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, lines = [], []
    for case in CASES:
        rates: dict[str, list[float]] = {"timm": [], "feedline": []}
        for _ in range(arguments.rounds):
            rates["timm"].append(rate(timm_create, arguments.folder, case))
            rates["feedline"].append(rate(create_loader, arguments.folder, case))
        ratios = [ours / theirs for theirs, ours in zip(*rates.values(), strict=True)]
        medians = {name: statistics.median(each) for name, each in rates.items()}
        rows.append({"case": case, **rates, "ratios": ratios})
        ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        lines.append([case, f"{medians['timm']:.0f}", f"{medians['feedline']:.0f}", ratio])
        print(*lines[-1], sep=" | ", flush=True)
    mean, largest = difference(arguments.folder)
    print(f"evaluation: {mean:.4f} grey levels on average, {largest:.1f} at most")
    print(table(lines, ["case", "timm", "feedline", "ratio (range)"]))
    results = {
        "machine": machine(),
        "versions": versions(["torch", "torchvision", "timm", "pillow"]),
    }
    save({**results, "rows": rows, "mean": mean, "largest": largest}, arguments.json)


if __name__ == "__main__":
    main()
