"""Compare published recipes with torch's DataLoader and with feedline's, in images per second.

    python benchmarks/recipes.py FOLDER [--only NAME] [--rounds N] [--json FILE]

FOLDER/CLASS/*.jpg. Recipes (`recipe_list.py`): most are one dataset object with torchvision's or
timm's transforms, given to both loaders with 2 workers, batches of 32, shuffled; for the others the
table lists the change in the user's code, and "unchanged" is the user's own code under
`feedline.patch()`. DALI, albumentations and timm's own loader are included if they have the recipe
and are installed (`make bench-peers`, `recipe_peers.py`).

Method: contestants alternate. A loader is built, one epoch is read as a warm-up, then whole epochs
are timed for at least three seconds. Prints the median of the rounds with its range, and the steps
that feedline fuses. The pixel difference is that of the whole pipeline for the same draws
(`recipe_pixels.py`), in grey levels of 255, the mean over 100 images.

Caveats: the training process only takes batches; the ratio depends on the size of the images.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from recipe_list import RECIPES, Recipe
from recipe_peers import peers_of
from recipe_pixels import difference
from report import machine, save, table, versions
from torch.utils.data import DataLoader

import feedline
from feedline.images.compile.pair import Pair
from feedline.images.compile.views import Compiled

WORKERS, BATCH, TIMED_S = 2, 32, 3.0
HEADERS = ["recipe", "torch", "feedline", "ratio (range)", "fused", "not fused"]
HEADERS += ["pixel difference", "others"]
STEP = re.compile(r"(?:^|, |: )((?:target_transform|[A-Z]\w+)(?=\(| ))")
"""Name of a transform in a line of `explain()`, also inside a RandomApply."""
PACKAGES = [
    *("torch", "torchvision", "timm", "pillow", "datasets", "albumentations"),
    *("opencv-python-headless", "nvidia-dali-cuda130"),
]

Epoch = Callable[[], Iterator[int]]
"""Reads an epoch and yields the number of images of each batch."""


@dataclass
class Row:
    """Results of a recipe.

    Args:
        recipe: its name.
        changed: change in the user's code for feedline, besides the loader.
        rates: images per second of each turn, by loader name.
        fused: transforms replaced by feedline's code.
        as_is: transforms that are not fused.
        difference: mean pixel difference of the pipeline, in grey levels.
    """

    recipe: str
    changed: str
    rates: dict[str, list[float]]
    fused: list[str]
    as_is: list[str]
    difference: float
    ratios: list[float] = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(self.rates["feedline"], self.rates["torch"], strict=True)
        self.ratios = [ours / theirs for ours, theirs in pairs]


def epoch_of(make: Callable[..., Any], dataset: Any, collate_fn: Any) -> Epoch:
    """Build a loader; return a function that reads an epoch."""
    loader = make(
        dataset,
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        drop_last=True,
        collate_fn=collate_fn,
    )

    def epoch() -> Iterator[int]:
        for batch in loader:
            yield len(batch["label"] if isinstance(batch, dict) else batch[1])

    return epoch


def unchanged(dataset: Any, collate_fn: Any) -> Epoch:
    """The user's loader and dataset without a change, under `feedline.patch()`."""
    with feedline.patch():
        read = epoch_of(DataLoader, dataset, collate_fn)

    def epoch() -> Iterator[int]:
        with feedline.patch():
            yield from read()

    return epoch


def rate(epoch: Epoch) -> float:
    """Images per second, after one epoch of warm-up."""
    for _ in epoch():
        pass
    begun, images = time.perf_counter(), 0
    while time.perf_counter() - begun < TIMED_S:
        images += sum(epoch())
    return images / (time.perf_counter() - begun)


def measure(name: str, recipe: Recipe, folder: Path, rounds: int) -> Row:
    """Measure a recipe with all loaders, alternately."""
    theirs = recipe.theirs(folder)
    ours = theirs if recipe.ours is None else recipe.ours(folder)
    collate_fn = recipe.collate and recipe.collate(len(theirs.classes))
    loaders: dict[str, Callable[[], Epoch]] = {
        "torch": lambda: epoch_of(DataLoader, theirs, collate_fn),
        "feedline": lambda: epoch_of(feedline.DataLoader, ours, collate_fn),
    }
    if recipe.ours is not None:
        loaders["unchanged"] = lambda: unchanged(theirs, collate_fn)
    for peer, epochs in peers_of(name).items():
        loaders[peer] = lambda epochs=epochs: epochs(folder, BATCH, WORKERS)
    rates: dict[str, list[float]] = {loader: [] for loader in loaders}
    for _ in range(rounds):
        for loader, begin in loaders.items():
            rates[loader].append(rate(begin()))
    fused, as_is = fusion_of(ours, collate_fn)
    return Row(name, recipe.changed, rates, fused, as_is, difference(recipe, folder))


def fusion_of(dataset: Any, collate_fn: Any) -> tuple[list[str], list[str]]:
    """Fused transforms and unfused ones, from `explain()`."""
    transform = getattr(dataset, "transform", None)
    within = isinstance(transform, (Compiled, Pair))
    if within:  # called by a user-defined Dataset
        said = transform.explain()
    else:
        with feedline.DataLoader(dataset, BATCH, collate_fn=collate_fn) as loader:
            said = loader.explain()
    facts: dict[str, list[str]] = {"fused": [], "unchanged": []}
    for line in said.splitlines():
        name, _, fact = line.partition(" ")
        if name in facts:
            facts[name] += STEP.findall(fact.strip())
    fused, as_is = (list(dict.fromkeys(names)) for names in facts.values())
    as_is += ["the Dataset"] * within + ["the `collate_fn`"] * (collate_fn is not None)
    return fused, as_is


def cells(row: Row) -> list[str]:
    """A row of the table."""
    low, high = min(row.ratios), max(row.ratios)
    medians = {loader: statistics.median(rates) for loader, rates in row.rates.items()}
    peers = [f"{loader} {rate:.0f}" for loader, rate in list(medians.items())[2:]]
    return [
        row.recipe + ("" if row.changed == "nothing" else f" ({row.changed})"),
        f"{medians['torch']:.0f}",
        f"{medians['feedline']:.0f}",
        f"{statistics.median(row.ratios):.2f} ({low:.2f}-{high:.2f})",
        ", ".join(row.fused),
        ", ".join(row.as_is) or "nothing",
        f"{row.difference:.3f}",
        ", ".join(peers) or "-",
    ]


def markdown_table(rows: list[Row]) -> str:
    """The whole table."""
    return table([cells(row) for row in rows], HEADERS, markdown=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="image folder with one sub-folder per class")
    parser.add_argument("--only", default="", help="run only recipes whose name contains this text")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per recipe")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random.seed(0)
    rows = []
    for name, recipe in RECIPES.items():
        if options.only in name:
            rows.append(measure(name, recipe, options.folder, options.rounds))
            print("  ".join(cells(rows[-1])), flush=True)
    print("\n" + markdown_table(rows))
    found = {
        "machine": machine(),
        "versions": versions(PACKAGES),
        "rows": [asdict(row) for row in rows],
    }
    save(found, options.json)


if __name__ == "__main__":
    main()
