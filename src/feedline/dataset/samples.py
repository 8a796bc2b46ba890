"""Single samples at the requested size and strength.

Guarantees: a sample of a compiled dataset is made with the seed that the engine gives a row, so it
has the pixels of that row. A batch that ignores the requested size raises an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from feedline.engine.messages import BatchTask
from feedline.errors import UsageError
from feedline.order.batch_spec import Item
from feedline.order.requested_size import SampleRequest
from feedline.order.seeds import extend, mix

__all__ = ["One", "Samples", "by_samples", "check"]


class Samples(Protocol):
    """Makes single samples. Called from one thread."""

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """Prepare for samples that are about to be made; errors are ignored."""

    def sample(self, item: Item) -> Any:
        """The dataset's value for a sample, with the random draws of the item's seed.

        Raises:
            Exception: any; it reaches the trainer with the sample's index.
        """


One: TypeAlias = Callable[[int, Any], Any]
"""Function from a sample's place in its batch, and its key, to the sample."""


def by_samples(
    samples: Samples, dataset: Any, keys: Any, task: BatchTask, request: SampleRequest
) -> One:
    """Create the function that makes a batch's samples; the dataset makes those without index.

    Args:
        samples: makes samples with an index.
        dataset: makes the others.
        keys: keys of the batch.
        task: size, strength and seeds.
        request: updated with what the samples read of it.
    """
    seed = mix(task.row_seed)
    with contextlib.suppress(Exception):
        numbers = [number for number in map(_whole, keys) if number is not None]
        samples.prepare(numbers, task.image_size)

    def one(place: int, key: Any) -> Any:
        number = _whole(key)
        if number is None:
            return dataset[key]
        request.image_size_was_read = request.strength_was_read = True
        own = extend(seed, number)  # as in `engine.fill`
        if task.stride:
            own = extend(own, task.place + place * task.stride)
        return samples.sample(Item(number, task.image_size, own, task.strength))

    return one


def _whole(key: Any) -> int | None:
    """Sample index of a key; None for any other key."""
    if type(key) is int or isinstance(key, np.integer):
        return int(key)
    if isinstance(key, torch.Tensor) and key.dim() == 0:
        found = key.item()
        return found if type(found) is int else None
    return None


def check(request: SampleRequest, dataset: object) -> None:
    """Check that a batch used the requested size and strength.

    Raises:
        UsageError: a size or a strength was requested, and nothing read it.
    """
    kind = type(dataset).__name__
    if request.image_size is not None and not request.image_size_was_read:
        raise UsageError(
            f"schedule= or image_size= is set, but nothing in {kind} asked for the size: the batch "
            f"might not be at {request.image_size} px. Use feedline.per_size(...) or "
            "feedline.image_size() in the transform, or leave the size out of the schedule"
        )
    if request.strength != 1 and not request.strength_was_read:
        raise UsageError(
            f"the schedule sets strength {request.strength:g}, but nothing in {kind} asked for it: "
            "the augmentation would have full strength. Use feedline.augmentation_strength() in "
            "the transform, or leave the strength out of the schedule"
        )
