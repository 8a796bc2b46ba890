"""The images that a run trains and validates on, found and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from feedline.errors import StateError
from feedline.images.crops import EvalCrop, TrainCrop
from feedline.images.folder import ImageFolder
from feedline.train.recipe import Recipe, differences
from feedline.train.splits import check_classes, find_splits, label_map

__all__ = ["TrainData"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainData:
    """Images in class folders.

    Args:
        train: of training.
        val: of validation, or None.
        labels_as: the training label of each validation label; None where they are the same.
        note: what the user should know of how they were found, or "".
    """

    train: ImageFolder
    val: ImageFolder | None
    labels_as: Sequence[int] | None
    note: str

    @classmethod
    def found(cls, root: Path, val: Path | None) -> TrainData:
        """The images of a folder.

        Raises:
            DatasetError: a folder is missing, or its classes do not fit.
        """
        splits = find_splits(root, val=val)
        train = ImageFolder(splits.train, transform=TrainCrop())
        check_classes(splits.train, train.classes)
        images = None if splits.val is None else ImageFolder(splits.val, transform=EvalCrop())
        labels_as = None if images is None else label_map(train.classes, images.classes)
        return cls(train=train, val=images, labels_as=labels_as, note=splits.note)

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint says of the training images, JSON-able."""
        return {
            "classes": list(self.train.classes),
            "images": len(self.train),
            "files": self.train.fingerprint(),
        }

    def check_resumable(self, saved: Mapping[str, Any]) -> None:
        """Make sure that these are the images of a checkpoint.

        Raises:
            StateError: they are others.
        """
        if found := differences(saved, self.facts, "were", "are"):
            raise StateError(
                f"cannot resume: the checkpoint is of another dataset ({found}). Name the folder "
                "it was made with, with the same files in it, or start anew without --resume"
            )

    def class_weights(self, recipe: Recipe) -> torch.Tensor | None:
        """By the inverse of each class's share of the samples, over which their mean is 1.

        None where the recipe asks for none.
        """
        if recipe.class_weights == "none":
            return None
        counts = torch.bincount(
            torch.from_numpy(self.train.targets), minlength=len(self.train.classes)
        )
        return len(self.train) / (len(counts) * counts.clamp(min=1).float())
