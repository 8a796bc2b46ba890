"""The recipes that `recipes.py` measures: as published for torch's DataLoader, and for feedline's.

Guarantees: where `ours` is None both loaders are given the very same object; else what differs is
what the documentation tells a user to change, and the batches hold the same kind of tensors.
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
    """A recipe under both loaders.

    Args:
        theirs: the dataset for torch's DataLoader, from a folder of photographs.
        ours: the one for feedline's; None: the same object.
        collate: a `collate_fn` of so many classes, for both.
        changed: what a user changes for feedline, beside the loader, in words.
    """

    theirs: Make
    ours: Make | None = None
    collate: Callable[[int], Any] | None = None
    changed: str = "nothing"


def plain(**how: Any) -> v1.Compose:
    """torchvision's training: a crop, a flip, floats."""
    return v1.Compose(
        [v1.RandomResizedCrop(224, **how), v1.RandomHorizontalFlip(), *FLOATS],
    )


def simclr(size: int = 224, **how: Any) -> v1.Compose:
    """Chen et al., 2020, in torchvision's terms: colours of strength 1, grey, a blur of 23 px."""
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
    """A view of Caron et al., 2021, in torchvision's terms."""
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
    """Two large views of their own kinds, and eight small ones."""
    large, small = (0.4, 1.0), (0.05, 0.4)
    return [
        dino(224, large, 1.0, 0.0),
        dino(224, large, 0.1, 0.2),
        *8 * [dino(96, small, 0.5, 0.0)],
    ]


class Views:
    """Wrapper class that such recipes publish: calls several transforms with an image."""

    def __init__(self, transforms: list[Any]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        """The views of an image."""
        return [transform(image) for transform in self._transforms]


class Table(Dataset[Any]):
    """A Dataset over a table of paths and labels, as people write it for a CSV file."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        self._rows = ImageFolder(str(folder)).samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._rows[index]
        return self.transform(Image.open(path).convert("RGB")), label


class TwoLinesChanged(Table):
    """The same where `feedline.compile` is used: the transform takes the path."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, feedline.compile(transform))

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._rows[index]
        return self.transform(path), label


class Mixing:
    """A `collate_fn` that mixes, as torchvision's reference training has it."""

    def __init__(self, classes: int) -> None:
        self._mix = v2.RandomChoice(
            [v2.MixUp(num_classes=classes, alpha=0.2), v2.CutMix(num_classes=classes, alpha=1.0)]
        )

    def __call__(self, samples: list[Any]) -> Any:
        """A batch, mixed."""
        return self._mix(*default_collate(samples))


def doubled(label: int) -> int:
    """A `target_transform`."""
    return 2 * label


def hugging_face(folder: Path) -> Any:
    """A split with an image column that is encoded, as `load_dataset` gives it."""
    import datasets

    results = ImageFolder(str(folder))
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=results.classes)}
    )
    columns = {
        "image": [path for path, _ in results.samples],
        "label": [label for _, label in results.samples],
    }
    return datasets.Dataset.from_dict(columns, features=features)


class OfABatch:
    """What a split's `with_transform` is given: a transform for each image of a batch."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self._transform = transform

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch, its images transformed."""
        images = [self._transform(image.convert("RGB")) for image in batch["image"]]
        return {"image": images, "label": batch["label"]}


def of(transform: Callable[[], Any]) -> Recipe:
    """A recipe of a torchvision ImageFolder: both loaders are given the same object."""
    return Recipe(lambda folder: ImageFolder(str(folder), transform()))


def of_views(transforms: Callable[[], list[Any]]) -> Recipe:
    """A recipe of several views of each image."""
    return Recipe(
        lambda folder: ImageFolder(str(folder), Views(transforms())),
        lambda folder: ImageFolder(str(folder), feedline.views(*transforms())),
        changed="one line: feedline.views",
    )


RECIPES: dict[str, Recipe] = {
    "torchvision, training": of(plain),
    "a target_transform": Recipe(
        lambda folder: ImageFolder(str(folder), plain(), target_transform=doubled)
    ),
    "MAE": of(lambda: plain(scale=(0.2, 1.0), interpolation=BICUBIC)),
    "timm, evaluation": of(lambda: create_transform(224, interpolation="bicubic")),
    "timm, training": of(lambda: create_transform(224, is_training=True)),
    "timm, training, bicubic": of(
        lambda: create_transform(224, is_training=True, interpolation="bicubic", color_jitter=None)
    ),
    "timm, RandAugment": of(
        lambda: create_transform(
            *(224,),
            is_training=True,
            interpolation="bicubic",
            auto_augment="rand-m9-mstd0.5",
            re_prob=0.25,
        )
    ),
    "torchvision's reference, TrivialAugment": of(
        lambda: v1.Compose(
            [
                *(v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.TrivialAugmentWide()),
                *(*REFERENCE_END, v1.RandomErasing(0.1)),
            ]
        )
    ),
    "torchvision's reference, RandAugment": of(
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
        lambda folder: TwoLinesChanged(folder, plain()),
        changed="two lines: feedline.compile",
    ),
    "datasets of Hugging Face": Recipe(
        lambda folder: hugging_face(folder).with_transform(OfABatch(plain())),
        lambda folder: feedline.ImageList.from_hf(hugging_face(folder), transform=plain()),
        changed="feedline.ImageList.from_hf",
    ),
    "segmentation, torchvision's preset": Recipe(
        segmentation.Usual, segmentation.Paired, changed="two lines: feedline.pair"
    ),
    "SimCLR, a single view": of(simclr),
    "SimCLR, two views": of_views(lambda: 2 * [simclr()]),
    "DINO, 2 + 8 views": of_views(dino_views),
}
