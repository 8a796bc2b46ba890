"""A trained model used: judged on a set of images, or asked what images are.

Guarantees: images are cropped as in the run's own validation: the centre, at its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from feedline.errors import UsageError
from feedline.images.crops import EvalCrop
from feedline.images.files import image_files
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.train.evaluate import Evaluation, evaluate
from feedline.train.memory_error import in_memory, too_large
from feedline.train.splits import label_map
from feedline.train.step import autocast
from feedline.train.weights import Weights

__all__ = ["Judged", "Prediction", "judge", "predict"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """How a model does on a set.

    Args:
        result: accuracies, loss and confusion.
        classes: names, in the order of rows and columns of the confusion.
        skipped: (path, reason) of images that could not be decoded.
    """

    result: Evaluation
    classes: list[str]
    skipped: list[tuple[str, str]]

    @property
    def by_class(self) -> list[tuple[str, int, float]]:
        """Of each class that has samples: its name, how many, and the share that was found."""
        rows = self.result.confusion or []
        return [
            (name, sum(row), row[k] / sum(row))
            for k, (name, row) in enumerate(zip(self.classes, rows, strict=True))
            if sum(row)
        ]

    def as_dict(self) -> dict[str, Any]:
        """The same, JSON-able."""
        by_class = [
            {"class": name, "samples": count, "top1": share} for name, count, share in self.by_class
        ]
        return {
            **asdict(self.result),
            "classes": self.classes,
            "by_class": by_class,
            "skipped": [list(pair) for pair in self.skipped],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a model says of an image.

    Args:
        path: of the image.
        classes: (name, probability), the likeliest first.
    """

    path: str
    classes: list[tuple[str, float]]


def _loader(
    images: ImageFolder,
    weights: Weights,
    *,
    size: int | None,
    batch_size: int,
    device: torch.device,
    workers: int | Literal["auto"],
    on_error: str,
) -> DataLoader[Any]:
    return DataLoader(
        images,
        batch_size,
        image_size=weights.size if size is None else size,
        shuffle=False,
        seed=0,
        num_workers=workers,
        device=device.type,
        on_error=on_error,
    )


def _too_large(
    weights: Weights, size: int | None, rows: int
) -> Callable[[BaseException], UsageError]:
    """What to say where a batch does not fit the device's memory."""

    def said(error: BaseException) -> UsageError:
        px, instead = size or weights.size, "Use a smaller --batch-size, or a smaller --size"
        return too_large("a batch", rows, px, error, instead=instead)

    return said


def judge(
    weights: Weights,
    folder: Path,
    *,
    device: torch.device,
    precision: torch.dtype,
    size: int | None = None,
    batch_size: int = 64,
    workers: int | Literal["auto"] = "auto",
    on_error: str = "raise",
    advance: Callable[[int, int], object] = lambda done, total: None,
) -> Judged:
    """Judge a model on the images of class folders.

    Args:
        weights: the model.
        folder: class folders, called as those of the training.
        device: where the model is.
        precision: what it computes in.
        size: side of the images in pixels; None for that of its validation.
        batch_size, workers, on_error: as of `DataLoader`.
        advance: is called with the images that are done, and all of them.

    Raises:
        DatasetError: a class is not one of the training's, or there is no image.
        SampleError: an image cannot be decoded, and `on_error` is "raise".
    """
    images = ImageFolder(folder, transform=EvalCrop())
    labels_as = label_map(weights.classes, images.classes)
    done = 0

    def told(rows: int) -> None:
        nonlocal done
        done += rows
        advance(done, len(images))

    with (
        in_memory(_too_large(weights, size, batch_size)),
        _loader(
            images,
            weights,
            size=size,
            batch_size=batch_size,
            device=device,
            workers=workers,
            on_error=on_error,
        ) as loader,
    ):
        result = evaluate(
            weights.model,
            loader,
            device=device,
            precision=precision,
            labels_as=labels_as,
            confusion=True,
            advance=told,
        )
        assert result is not None, "a folder has images"
        return Judged(result=result, classes=weights.classes, skipped=loader.skipped)


def predict(
    weights: Weights,
    paths: Sequence[Path],
    *,
    device: torch.device,
    precision: torch.dtype,
    most: int = 1,
    size: int | None = None,
    batch_size: int = 64,
    workers: int | Literal["auto"] = "auto",
    on_error: str = "raise",
    skipped: Callable[[str, str], object] = lambda path, reason: None,
) -> Iterator[Prediction]:
    """Say what images are, in their order; those that are skipped are left out.

    Args:
        weights: the model.
        paths: of the images.
        device, precision, size, batch_size, workers, on_error: as of `judge`.
        most: how many classes are named for each image.
        skipped: is called at the end with path and reason of each image that was left out.

    Raises:
        SampleError: an image cannot be decoded, and `on_error` is "raise".
        UsageError: a batch does not fit the device's memory.
    """
    images_of = image_files(paths, EvalCrop())
    with (
        in_memory(_too_large(weights, size, batch_size)),
        _loader(
            images_of,
            weights,
            size=size,
            batch_size=batch_size,
            device=device,
            workers=workers,
            on_error=on_error,
        ) as loader,
    ):
        for images, _ in loader:
            assert loader.batch is not None, "a batch was handed out"
            with torch.inference_mode(), autocast(device, precision):
                shares = weights.model(images).float().softmax(dim=1)
            found = shares.topk(min(most, len(weights.classes)), dim=1)
            numbers, values = found.indices.tolist(), found.values.tolist()
            left_out = {path for path, _ in loader.skipped}
            made = [
                sample
                for sample in loader.batch.samples.tolist()
                if images_of.store.name(sample) not in left_out
            ]
            for sample, named, chances in zip(made, numbers, values, strict=True):
                classes = [
                    (weights.classes[k], chance) for k, chance in zip(named, chances, strict=True)
                ]
                yield Prediction(path=str(paths[sample]), classes=classes)
        for path, reason in loader.skipped:
            skipped(path, reason)
