"""Evaluation and prediction with a model: accuracy, loss, confusion matrix, class probabilities.

Guarantees: figures are sums over samples, not means over batches, so a smaller last batch counts as
it should. The device is waited for once, at the end. Images are cropped as in the validation of the
training: the centre, at its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from feedline.errors import FeedlineError
from feedline.images.crops import EvalCrop
from feedline.images.folder import ImageFolder
from feedline.images.image_list import ImageList
from feedline.loader import DataLoader
from feedline.train.data import label_map
from feedline.train.model import TrainedModel
from feedline.train.ranks import Ranks
from feedline.train.runtime import memory_error
from feedline.tuning.training_step import autocast


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Figures of a model on a set of images; shares are from 0 to 1."""

    samples: int
    loss: float  # mean cross-entropy, without label smoothing
    top1: float
    top5: float | None  # None for five classes or fewer
    confusion: list[list[int]] | None = None  # images of a class (row) predicted as each (column)
    classes: list[str] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # path, reason

    @property
    def by_class(self) -> list[tuple[str, int, float]]:
        """(name, number of images, top-1) of each class that has images."""
        rows = zip(self.classes, self.confusion or [], strict=False)
        return [
            (name, sum(row), row[k] / sum(row)) for k, (name, row) in enumerate(rows) if sum(row)
        ]

    def as_dict(self) -> dict[str, Any]:
        """The same, JSON-able, with the figures of each class."""
        names = ("class", "samples", "top1")
        by_class = [dict(zip(names, row, strict=True)) for row in self.by_class]
        return asdict(self) | {"by_class": by_class, "skipped": [list(one) for one in self.skipped]}


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, ...]],
    *,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    confusion: bool = False,
    ranks: Ranks | None = None,
    labels: Sequence[int] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    advance: Callable[[int], object] = lambda done: None,
) -> Evaluation | None:
    """Evaluate a model; its weights, statistics and mode do not change.

    `batches` are pairs of normalised images (N, 3, H, W) and int64 labels (N,), on the device;
    `labels` has their training labels, None if they are equal. If `stopped()`, called after each
    batch, the result is None. `advance` is called with the number of images done on this rank.
    """
    table = None if labels is None else torch.tensor(labels, device=device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    hits = torch.zeros(2, dtype=torch.int64, device=device)
    samples = classes = 0
    matrix: Tensor | None = None
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for images, targets in batches:
                if table is not None:
                    targets = table[targets]
                with autocast(device, precision):
                    logits = model(images)
                logits = logits.float()
                loss_sum += functional.cross_entropy(logits, targets, reduction="sum").double()
                classes = logits.shape[1]
                found = logits.topk(min(5, classes), dim=1).indices == targets[:, None]
                hits += torch.stack([found[:, 0].sum(), found.any(dim=1).sum()])
                if confusion:
                    pairs = targets * classes + logits.argmax(dim=1)
                    counts = torch.bincount(pairs, minlength=classes**2)
                    matrix = counts if matrix is None else matrix + counts
                samples += len(targets)
                advance(samples)
                if stopped():
                    return None
    finally:
        model.train(training)
    if ranks is not None:
        counts = ranks.summed(torch.tensor([samples, *hits.tolist()], device="cpu"))
        samples, hits = int(counts[0]), counts[1:]
        loss_sum = ranks.summed(loss_sum)
    if not samples:
        return None
    first, any_of_five = hits.tolist()
    return Evaluation(
        samples=samples,
        loss=loss_sum.item() / samples,
        top1=first / samples,
        top5=any_of_five / samples if classes > 5 else None,
        confusion=None if matrix is None else matrix.view(classes, classes).tolist(),
    )


def evaluate_folder(
    trained: TrainedModel,
    folder: Path,
    *,
    precision: torch.dtype,
    advance: Callable[[int, int], object] = lambda done, total: None,
    **loading: Any,
) -> Evaluation:
    """Evaluate a model on a folder of class folders with the names of the training.

    `advance` is called with the number of images done, and of all; `loading` is for `_batches`.
    """
    images = ImageFolder(folder, transform=EvalCrop())
    labels = label_map(trained.classes, images.classes)
    with _batches(images, trained, **loading) as loader:
        result = evaluate(
            trained.model,
            loader,
            device=trained.device,
            precision=precision,
            labels=labels,
            confusion=True,
            advance=lambda done: advance(done, len(images)),
        )
        if result is None:
            path, reason = loader.skipped[0]
            raise FeedlineError(
                f"no image of {folder} could be read; the first: "
                f"{reason if path in reason else f'{path}: {reason}'}"
            )
        return replace(result, classes=trained.classes, skipped=loader.skipped)


def predict(
    trained: TrainedModel,
    paths: Sequence[Path],
    *,
    precision: torch.dtype,
    topk: int = 1,
    skipped: Callable[[str, str], object] = lambda path, reason: None,
    **loading: Any,
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """Classify images: path and (class, probability), the most probable first, in order.

    Arguments are as in `evaluate_folder`; `skipped` is called at the end with path and reason of
    each image that was skipped.
    """
    files = ImageList(paths, np.zeros(len(paths), np.int64), EvalCrop())
    with _batches(files, trained, **loading) as loader:
        for images, _ in loader:
            assert loader.batch is not None, "a batch was returned"
            with torch.inference_mode(), autocast(trained.device, precision):
                shares = trained.model(images).float().softmax(dim=1)
            found = shares.topk(min(topk, len(trained.classes)), dim=1)
            samples = loader.batch.samples.tolist()
            rows = zip(samples, found.indices.tolist(), found.values.tolist(), strict=True)
            for number, labels, values in rows:
                names = [trained.classes[label] for label in labels]
                yield str(paths[number]), list(zip(names, values, strict=True))
        for path, reason in loader.skipped:
            skipped(path, reason)


@contextmanager
def _batches(
    images: ImageFolder | ImageList,
    trained: TrainedModel,
    *,
    image_size: int | None = None,
    batch_size: int = 64,
    workers: int | Literal["auto"] = "auto",
    on_error: str = "raise",
) -> Iterator[DataLoader[Any]]:
    """Batches of images as the validation makes them."""
    size = trained.image_size if image_size is None else image_size
    what = f"a batch of {batch_size} images at {size} px"
    loader = DataLoader[Any](
        images,
        batch_size,
        image_size=size,
        shuffle=False,
        seed=0,
        num_workers=workers,
        device=str(trained.device),
        on_error=on_error,
    )
    with loader, memory_error(what, "use a smaller --batch-size or --image-size"):
        yield loader
