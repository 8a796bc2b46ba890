"""Published recipes under torch's DataLoader and under feedline's: images per second.

    python benchmarks/recipes.py FOLDER [--only NAME] [--rounds N] [--json FILE]

FOLDER/CLASS/*.jpg. `recipe_list.py` has the recipes: most are one dataset object with torchvision's
or timm's own transforms, given to both loaders, 2 workers, batches of 32, shuffled; of the others
it says what a user changes. Where DALI, albumentations or timm's own loader have a recipe and are
installed (`make bench-peers`), they take part (`recipe_peers.py`). All take turns: a loader is
built, one epoch is read (workers start, files come into the page cache), then whole epochs are
timed for three seconds at least. Given are the median of the rounds, with their range, and what
feedline says that it does in the place of the recipe's own code.

The difference in pixels is that of the crops alone, in grey levels of 255 in the mean over 100
images, against Pillow's crop and resize with the same corners: all that follows them is done by the
recipe's own steps, or to the same bytes, but for a blur (within one level). It is measured where
both loaders are given the same ImageFolder.

Caveats: the training process only takes batches; other images have other ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from recipe_list import RECIPES, Recipe
from recipe_peers import peers_of
from report import machine, save, table, versions
from torch.utils.data import DataLoader

import feedline
from feedline.images.placement import Box
from feedline.plan.row import Item
from feedline.recognition.compiled import Compiled
from feedline.recognition.pair import Pair
from feedline.recognition.pipeline import ImagePipeline
from feedline.recognition.recognise import recognise

WORKERS, BATCH, TIMED_S = 2, 32, 3.0
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
PACKAGES = [
    *("torch", "torchvision", "timm", "pillow", "datasets", "albumentations"),
    *("opencv-python-headless", "nvidia-dali-cuda130"),
]

Epoch = Callable[[], Iterator[int]]
"""Goes through an epoch and gives how many images each batch has."""


@dataclass
class Row:
    """A recipe.

    Args:
        recipe: its name.
        changed: what a user changes for feedline, beside the loader.
        rates: images per second of each turn, by the loader's name.
        said: what feedline says of it.
        difference: of the crops' pixels, in grey levels in the mean.
    """

    recipe: str
    changed: str
    rates: dict[str, list[float]]
    said: list[str]
    difference: float | None
    ratios: list[float] = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.rates["feedline"], self.rates["torch"], strict=True)
        self.ratios = [ours / theirs for ours, theirs in pairs]


def epoch_of(make: Callable[..., Any], dataset: Any, collate_fn: Any, **options: Any) -> Epoch:
    """The epochs of a loader that is built for this turn."""
    loader = make(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        drop_last=True,
        collate_fn=collate_fn,
        **options,
    )

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield len(batch["label"] if isinstance(batch, dict) else batch[1])

    return epoch


def rate(epoch: Epoch) -> float:
    """Images per second, behind an epoch that is not timed."""
    for _ in epoch():
        pass
    begun, images = time.perf_counter(), 0
    while time.perf_counter() - begun < TIMED_S:
        images += sum(epoch())
    return images / (time.perf_counter() - begun)


def difference(dataset: Any) -> float | None:
    """Of the crops' pixels from Pillow's with the same corners; None where none is taken over."""
    pipeline = recognise(dataset).pipeline
    if not isinstance(pipeline, ImagePipeline):
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


def measured(name: str, recipe: Recipe, folder: Path, rounds: int) -> Row:
    """A recipe under all loaders, in turns."""
    theirs = recipe.theirs(folder)
    ours = theirs if recipe.ours is None else recipe.ours(folder)
    collate_fn = recipe.collate and recipe.collate(len(theirs.classes))
    loaders: dict[str, Callable[[], Epoch]] = {
        "torch": lambda: epoch_of(DataLoader, theirs, collate_fn),
        "feedline": lambda: epoch_of(feedline.DataLoader, ours, collate_fn, **dict(recipe.options)),
    }
    for peer, epochs in peers_of(name).items():
        loaders[peer] = lambda epochs=epochs: epochs(folder, BATCH, WORKERS)
    rates: dict[str, list[float]] = {loader: [] for loader in loaders}
    for _ in range(rounds):
        for loader, begin in loaders.items():
            rates[loader].append(rate(begin()))
    apart = difference(ours) if recipe.ours is None else None
    return Row(name, recipe.changed, rates, said_of(ours), apart)


def said_of(dataset: Any) -> list[str]:
    """What feedline does in the place of a recipe's own code, and what runs as it is."""
    transform = getattr(dataset, "transform", None)
    if isinstance(transform, (Compiled, Pair)):
        return [f"compiled: {line}" for line in transform.explain().splitlines()]
    if isinstance(dataset, feedline.ImageList):
        return ["fast: all of it"]
    found = recognise(dataset)
    said = [*(f"fast: {step}" for step in found.fast), *(f"as it is: {s}" for s in found.as_is)]
    return said or list(found.refused)


def in_words(row: Row) -> list[str]:
    """A line of the table."""
    names = [
        said.removeprefix("as it is: ").partition("(")[0]
        for said in row.said
        if said.startswith("as it is: ")
    ]
    low, high = min(row.ratios), max(row.ratios)
    medians = {loader: statistics.median(rates) for loader, rates in row.rates.items()}
    peers = [f"{loader} {rate:.0f}" for loader, rate in list(medians.items())[2:]]
    return [
        row.recipe,
        f"{medians['torch']:.0f}",
        f"{medians['feedline']:.0f}",
        f"{statistics.median(row.ratios):.2f} ({low:.2f}-{high:.2f})",
        "-" if row.difference is None else f"{row.difference:.2f}",
        ", ".join(names) or "nothing",
        row.changed,
        ", ".join(peers) or "-",
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
    for name, recipe in RECIPES.items():
        if options.only in name:
            rows.append(measured(name, recipe, options.folder, options.rounds))
            print("  ".join(in_words(rows[-1])), flush=True)
    headers = ["recipe", "torch", "feedline", "ratio", "difference", "runs as it is"]
    headers += ["changed", "others"]
    print("\n" + table([in_words(row) for row in rows], headers, markdown=True))
    found = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "rows": [asdict(row) for row in rows],
    }
    save(found, options.json)


if __name__ == "__main__":
    main()
