"""Published recipes, unchanged, under torch's DataLoader and under feedline's: images per second.

    python benchmarks/recipes.py FOLDER [--only NAME] [--rounds N] [--json FILE]

FOLDER/CLASS/*.jpg. Each recipe is one dataset object with torchvision's or timm's own transforms,
given to both loaders with 2 workers, batches of 32, shuffled. They take turns: a loader is built,
one epoch is read (workers start, files come into the page cache), then whole epochs are timed for
three seconds at least. Given are the median of the rounds, with their range, and what feedline says
that it does in the place of the recipe's own code.

The difference in pixels is that of the crops alone, in grey levels of 255 in the mean over 100
images, against Pillow's crop and resize with the same corners: all that follows them is done by the
recipe's own steps, or to the same bytes, but for a blur (within one level).

Caveats: the training process only takes batches; other images have other ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import segmentation
import torch
from PIL import Image
from report import machine, save, table, versions
from timm.data import create_transform
from torch.utils.data import DataLoader, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import feedline
from feedline.images.placement import Box
from feedline.plan.row import Item
from feedline.recognition.recognise import recognise

WORKERS, BATCH, TIMED_S = 2, 32, 3.0
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOATS = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
REFERENCE_END = [v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD)]
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def train_crop(**how: Any) -> list[Any]:
    """The crop and the flip that most recipes begin with."""
    return [v1.RandomResizedCrop(224, **how), v1.RandomHorizontalFlip()]


def simclr() -> v1.Compose:
    """Chen et al., 2020, in torchvision's terms: colours of strength 1, grey, a blur of 23 px."""
    return v1.Compose(
        [
            *train_crop(),
            v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v1.RandomGrayscale(0.2),
            v1.RandomApply([v1.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            *FLOATS,
        ]
    )


TRANSFORMS: dict[str, Callable[[], Any]] = {
    "torchvision, training": lambda: v1.Compose([*train_crop(), *FLOATS]),
    "MAE": lambda: v1.Compose(
        [*train_crop(scale=(0.2, 1.0), interpolation=v1.InterpolationMode.BICUBIC), *FLOATS]
    ),
    "timm, evaluation": lambda: create_transform(224, interpolation="bicubic"),
    "timm, training": lambda: create_transform(224, is_training=True),
    "timm, training, bicubic": lambda: create_transform(
        224, is_training=True, interpolation="bicubic", color_jitter=None
    ),
    "timm, RandAugment": lambda: create_transform(
        224, is_training=True, interpolation="bicubic", auto_augment="rand-m9-mstd0.5", re_prob=0.25
    ),
    "torchvision's reference, TrivialAugment": lambda: v1.Compose(
        [*train_crop(), v1.TrivialAugmentWide(), *REFERENCE_END, v1.RandomErasing(0.1)]
    ),
    "torchvision's reference, RandAugment": lambda: v1.Compose(
        [*train_crop(), v1.RandAugment(), *REFERENCE_END]
    ),
    "torchvision's reference, mixing in collate_fn": lambda: v1.Compose(
        [*train_crop(), *REFERENCE_END]
    ),
    "SimCLR, a single view": simclr,
}


class Mixing:
    """A `collate_fn` that mixes, as torchvision's reference training has it."""

    def __init__(self, classes: int) -> None:
        self._mix = v2.RandomChoice(
            [v2.MixUp(num_classes=classes, alpha=0.2), v2.CutMix(num_classes=classes, alpha=1.0)]
        )

    def __call__(self, samples: list[Any]) -> Any:
        """A batch, mixed."""
        return self._mix(*default_collate(samples))


@dataclass
class Row:
    """A recipe.

    Args:
        recipe: its name.
        torchs: images per second of each turn,
        feedlines: likewise.
        said: what feedline says of it.
        difference: of the crops' pixels, in grey levels in the mean.
    """

    recipe: str
    torchs: list[float]
    feedlines: list[float]
    said: list[str]
    difference: float | None
    ratios: list[float] = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.feedlines, self.torchs, strict=True)
        self.ratios = [ours / theirs for ours, theirs in pairs]


def rate(make: Callable[..., Any], dataset: Any, collate_fn: Any) -> float:
    """Images per second of a loader that is built for this turn."""
    loader = make(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        drop_last=True,
        collate_fn=collate_fn,
    )
    for _ in loader:
        pass
    begun, images = time.perf_counter(), 0
    while time.perf_counter() - begun < TIMED_S:
        for batch in loader:
            images += len(batch[1])
    return images / (time.perf_counter() - begun)


def difference(dataset: Any) -> float | None:
    """Of the crops' pixels from Pillow's with the same corners; None where none is taken over."""
    pipeline = recognise(dataset).pipeline
    if pipeline is None:
        return None
    apart = []
    for sample in range(0, len(dataset), max(1, len(dataset) // 100)):
        item = Item(sample, 224, sample, 1.0)
        ours, _ = pipeline._pixels(item)
        with Image.open(dataset.samples[sample][0]) as opened:
            image = opened.convert("RGB")
        placed = pipeline.recognised.crop.place(image.height, image.width, item)
        by = FILTERS[placed.filter]
        if isinstance(placed, Box):
            part = (placed.left, placed.top, placed.left + placed.width, placed.top + placed.height)
            theirs = image.crop(part).resize((224, 224), by)
        else:
            corner = placed.left, placed.top, placed.left + 224, placed.top + 224
            theirs = image.resize((placed.width, placed.height), by).crop(corner)
        if placed.flip:
            theirs = theirs.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        apart.append(float(np.abs(ours.astype(int) - np.asarray(theirs)).mean()))
    return statistics.mean(apart)


def measured(name: str, folder: Path, rounds: int) -> Row:
    """A recipe under both loaders, in turns."""
    dataset = ImageFolder(str(folder), TRANSFORMS[name]())
    collate_fn = Mixing(len(dataset.classes)) if "collate" in name else None
    torchs, feedlines = [], []
    for _ in range(rounds):
        torchs.append(rate(DataLoader, dataset, collate_fn))
        feedlines.append(rate(feedline.DataLoader, dataset, collate_fn))
    found = recognise(dataset)
    said = [*(f"fast: {step}" for step in found.fast), *(f"as it is: {s}" for s in found.as_is)]
    return Row(name, torchs, feedlines, said or list(found.refused), difference(dataset))


def measured_pairs(folder: Path, rounds: int) -> Row:
    """torchvision's segmentation preset, with masks that are made for it; a Dataset for each."""
    torchs, feedlines = [], []
    with segmentation.masks_of(folder) as pairs:
        usual, paired = segmentation.datasets(pairs)
        for _ in range(rounds):
            torchs.append(rate(DataLoader, usual, None))
            feedlines.append(rate(feedline.DataLoader, paired, None))
        apart = segmentation.difference(usual, paired)
    said = paired.transforms.explain().splitlines()
    return Row(segmentation.NAME, torchs, feedlines, [f"fast: {line}" for line in said], apart)


def in_words(row: Row) -> list[str]:
    """A line of the table."""
    as_is = [said for said in row.said if not said.startswith("fast: ")]
    names = [said.removeprefix("as it is: ").partition("(")[0] for said in as_is]
    low, high = min(row.ratios), max(row.ratios)
    return [
        row.recipe,
        f"{statistics.median(row.torchs):.0f}",
        f"{statistics.median(row.feedlines):.0f}",
        f"{statistics.median(row.ratios):.2f} ({low:.2f}-{high:.2f})",
        "-" if row.difference is None else f"{row.difference:.2f}",
        ", ".join(names) or "nothing",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="of photographs, a folder for each class")
    parser.add_argument("--only", default="", help="recipes that have this in their names")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each loader")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random.seed(0)
    rows = []
    for name in TRANSFORMS:
        if options.only in name:
            rows.append(measured(name, options.folder, options.rounds))
            print("  ".join(in_words(rows[-1])), flush=True)
    if options.only in segmentation.NAME:
        rows.append(measured_pairs(options.folder, options.rounds))
        print("  ".join(in_words(rows[-1])), flush=True)
    headers = ["recipe", "torch", "feedline", "ratio", "difference", "runs as it is"]
    print("\n" + table([in_words(row) for row in rows], headers, markdown=True))
    found = {
        "machine": machine(),
        "versions": versions(["torch", "torchvision", "timm", "pillow"]),
        "rows": [asdict(row) for row in rows],
    }
    save(found, options.json)


if __name__ == "__main__":
    main()
