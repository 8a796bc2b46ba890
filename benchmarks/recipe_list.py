"""Recipes that `recipes.py` measures, as published for torch's DataLoader and for feedline's.

Guarantees: if `ours` is None, both loaders get the same object; otherwise they differ in what the
documentation tells a user to change, and batches hold the same kind of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import segmentation
import torch
from PIL import Image
from timm.data import create_transform
from torch.utils.data import Dataset, default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import feedline

__all__ = ["MEAN", "RECIPES", "STD", "Recipe"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOATS = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
REFERENCE_END = [v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.Normalize(MEAN, STD)]
BICUBIC = v1.InterpolationMode.BICUBIC

Make = Callable[[Path], Any]


@dataclass(frozen=True)
class Recipe:
    """A recipe for both loaders.

    Args:
        theirs: builds the dataset for torch's DataLoader from an image folder.
        ours: builds the dataset for feedline's; None for the same object.
        collate: builds the `collate_fn` of both from the number of classes.
        changed: change in the user's code for feedline, besides the loader.
    """

    theirs: Make
    ours: Make | None = None
    collate: Callable[[int], Any] | None = None
    changed: str = "nothing"


def plain(**how: Any) -> v1.Compose:
    """torchvision's training transform: crop, flip, floats."""
    return v1.Compose(
        [v1.RandomResizedCrop(224, **how), v1.RandomHorizontalFlip(), *FLOATS],
    )


def simclr(size: int = 224, **how: Any) -> v1.Compose:
    """SimCLR's transform (Chen et al., 2020) in torchvision: strength 1, blur of 23 px."""
    return v1.Compose(
        [
            v1.RandomResizedCrop(size, **how),
            v1.RandomHorizontalFlip(),
            v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            v1.RandomGrayscale(0.2),
            v1.RandomApply([v1.GaussianBlur(23, (0.1, 2.0))], p=0.5),
            *FLOATS,
        ]
    )


def dino(size: int, scale: tuple[float, float], blur: float, solarize: float) -> v1.Compose:
    """A view of DINO (Caron et al., 2021) in torchvision."""
    return v1.Compose(
        [
            v1.RandomResizedCrop(size, scale=scale, interpolation=BICUBIC),
            v1.RandomHorizontalFlip(),
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            v1.RandomGrayscale(0.2),
            v1.RandomApply([v1.GaussianBlur(23, (0.1, 2.0))], p=blur),
            v1.RandomSolarize(128, p=solarize),
            *FLOATS,
        ]
    )


def dino_views() -> list[v1.Compose]:
    """Two different large views, and eight small ones."""
    large, small = (0.4, 1.0), (0.05, 0.4)
    return [
        dino(224, large, 1.0, 0.0),
        dino(224, large, 0.1, 0.2),
        *8 * [dino(96, small, 0.5, 0.0)],
    ]


class Views:
    """Wrapper as in published code: applies several transforms to an image."""

    def __init__(self, transforms: list[Any]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self._transforms]


class Table(Dataset[Any]):
    """Dataset over a table of paths and labels, as written for a CSV file."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        self._rows = ImageFolder(str(folder)).samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._rows[index]
        return self.transform(Image.open(path).convert("RGB")), label


class CompiledTable(Table):
    """The same dataset with `feedline.compile`: the transform gets the path."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, feedline.compile(transform))

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._rows[index]
        return self.transform(path), label


class Mixing:
    """`collate_fn` with MixUp and CutMix, as in torchvision's reference training."""

    def __init__(self, classes: int) -> None:
        self._mix = v2.RandomChoice(
            [v2.MixUp(num_classes=classes, alpha=0.2), v2.CutMix(num_classes=classes, alpha=1.0)]
        )

    def __call__(self, samples: list[Any]) -> Any:
        """Collate and mix a batch."""
        return self._mix(*default_collate(samples))


def double_label(label: int) -> int:
    """A `target_transform`."""
    return 2 * label


def hugging_face(folder: Path) -> Any:
    """A Hugging Face split with encoded images, as from `load_dataset`."""
    import datasets

    images = ImageFolder(str(folder))
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=images.classes)}
    )
    columns = {
        "image": [path for path, _ in images.samples],
        "label": [label for _, label in images.samples],
    }
    return datasets.Dataset.from_dict(columns, features=features)


class BatchTransform:
    """Function for a split's `with_transform`: transforms each image of a batch."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self._transform = transform

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        images = [self._transform(image.convert("RGB")) for image in batch["image"]]
        return {"image": images, "label": batch["label"]}


def same_dataset(transform: Callable[[], Any]) -> Recipe:
    """A recipe over a torchvision ImageFolder; both loaders get the same object."""
    return Recipe(lambda folder: ImageFolder(str(folder), transform()))


def views_recipe(transforms: Callable[[], list[Any]]) -> Recipe:
    """A recipe with several views per image."""
    return Recipe(
        lambda folder: ImageFolder(str(folder), Views(transforms())),
        lambda folder: ImageFolder(str(folder), feedline.views(*transforms())),
        changed="one line: feedline.views",
    )


RECIPES: dict[str, Recipe] = {
    "torchvision, training": same_dataset(plain),
    "a target_transform": Recipe(
        lambda folder: ImageFolder(str(folder), plain(), target_transform=double_label)
    ),
    "MAE": same_dataset(lambda: plain(scale=(0.2, 1.0), interpolation=BICUBIC)),
    "timm, evaluation": same_dataset(lambda: create_transform(224, interpolation="bicubic")),
    "timm, training": same_dataset(lambda: create_transform(224, is_training=True)),
    "timm, training, bicubic": same_dataset(
        lambda: create_transform(224, is_training=True, interpolation="bicubic", color_jitter=None)
    ),
    "timm, RandAugment": same_dataset(
        lambda: create_transform(
            *(224,),
            is_training=True,
            interpolation="bicubic",
            auto_augment="rand-m9-mstd0.5",
            re_prob=0.25,
        )
    ),
    "torchvision's reference, TrivialAugment": same_dataset(
        lambda: v1.Compose(
            [
                *(v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.TrivialAugmentWide()),
                *(*REFERENCE_END, v1.RandomErasing(0.1)),
            ]
        )
    ),
    "torchvision's reference, RandAugment": same_dataset(
        lambda: v1.Compose(
            [
                *(v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.RandAugment()),
                *REFERENCE_END,
            ]
        )
    ),
    "torchvision's reference, mixing in collate_fn": Recipe(
        lambda folder: ImageFolder(
            str(folder),
            v1.Compose(
                [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), *REFERENCE_END],
            ),
        ),
        collate=Mixing,
    ),
    "a Dataset over a CSV file": Recipe(
        lambda folder: Table(folder, plain()),
        lambda folder: CompiledTable(folder, plain()),
        changed="two lines: feedline.compile",
    ),
    "datasets of Hugging Face": Recipe(
        lambda folder: hugging_face(folder).with_transform(BatchTransform(plain())),
        lambda folder: feedline.ImageList.from_hf(
            hugging_face(folder), root=folder, transform=plain()
        ),
        changed="feedline.ImageList.from_hf",
    ),
    "segmentation, torchvision's preset": Recipe(
        segmentation.Usual, segmentation.Paired, changed="two lines: feedline.pair"
    ),
    "SimCLR, a single view": same_dataset(simclr),
    "SimCLR, two views": views_recipe(lambda: 2 * [simclr()]),
    "DINO, 2 + 8 views": views_recipe(dino_views),
}
