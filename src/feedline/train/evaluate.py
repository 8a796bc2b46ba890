"""Accuracy and loss on a validation set, exact on every sample.

Guarantees: sums over samples, not means over batches, so a smaller last batch counts as it should.
The device is waited for once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from feedline.train.ranks import Ranks
from feedline.train.step import autocast

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What a model achieves on a set.

    Args:
        samples: how many samples were judged.
        loss: mean cross-entropy, without label smoothing.
        top1: share of samples, 0 to 1, whose class got the highest score.
        top5: share whose class is among the five highest; None with five classes or fewer.
        confusion: how many samples of each class (row) were taken for each class (column); None
            where it was not asked for.
    """

    samples: int
    loss: float
    top1: float
    top5: float | None
    confusion: list[list[int]] | None = None


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, ...]],
    *,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    confusion: bool = False,
    ranks: Ranks | None = None,
    labels_as: Sequence[int] | None = None,
    stopped: Callable[[], bool] = lambda: False,
    advance: Callable[[int], None] = lambda rows: None,
) -> Evaluation | None:
    """Judge a model; its weights, statistics and mode stay as they are.

    Args:
        model: is judged.
        batches: pairs of normalised images (N, 3, H, W) and int64 labels (N,), on the device.
        device: where the model is.
        precision: what it computes in.
        confusion: count which classes are taken for which.
        ranks: among which the samples are shared; None for this process alone.
        labels_as: the training label of each label in `batches`; None where they are the same.
        stopped: asked after each batch; True ends the work.
        advance: called with the rows of each batch that is done.

    Returns:
        The result, or None where it was stopped or there was no sample.
    """
    table = None if labels_as is None else torch.tensor(labels_as, device=device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    hits = torch.zeros(2, dtype=torch.int64, device=device)
    samples = classes = 0
    taken_for: Tensor | None = None
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for images, labels in batches:
                if table is not None:
                    labels = table[labels]
                with autocast(device, precision):
                    logits = model(images)
                logits = logits.float()
                loss_sum += functional.cross_entropy(logits, labels, reduction="sum").double()
                classes = logits.shape[1]
                found = logits.topk(min(5, classes), dim=1).indices == labels[:, None]
                hits += torch.stack([found[:, 0].sum(), found.any(dim=1).sum()])
                if confusion:
                    pairs = labels * classes + logits.argmax(dim=1)
                    counts = torch.bincount(pairs, minlength=classes**2)
                    taken_for = counts if taken_for is None else taken_for + counts
                samples += len(labels)
                advance(len(labels))
                if stopped():
                    return None
    finally:
        model.train(training)
    if ranks is not None:
        counts = ranks.summed(torch.tensor([samples, *hits.tolist()], device="cpu"))
        samples, hits = int(counts[0]), counts[1:]
        loss_sum = ranks.summed(loss_sum.cpu())
    if not samples:
        return None
    first, any_of_five = hits.tolist()
    return Evaluation(
        samples=samples,
        loss=loss_sum.item() / samples,
        top1=first / samples,
        top5=any_of_five / samples if classes > 5 else None,
        confusion=None if taken_for is None else taken_for.view(classes, classes).tolist(),
    )
