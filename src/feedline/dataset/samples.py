"""Single samples at the size and strength that were requested.

Guarantees: a sample of a recognised dataset is made with the seed that the engine gives a row, so
that it has the pixels of that row. A batch that cannot be at the requested size or strength, as
nothing asked for it, is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from feedline.engine.messages import BatchTask
from feedline.errors import UsageError
from feedline.plan.row import Item
from feedline.plan.seeds import extend, mix
from feedline.request import Request

__all__ = ["One", "Samples", "by_samples", "check"]


class Samples(Protocol):
    """Makes single samples. Called from one thread."""

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """These are about to be made; what it raises is passed over."""

    def sample(self, item: Item) -> Any:
        """What the dataset itself gives for a sample, with the random draws of the item's seed.

        Raises:
            Exception: any; it comes home with the sample's index.
        """


One: TypeAlias = Callable[[int, Any], Any]
"""From a sample's place in its batch, and its key, to the sample."""


def by_samples(samples: Samples, dataset: Any, keys: Any, task: BatchTask, request: Request) -> One:
    """What makes the samples of one batch; keys that are no whole numbers go to the dataset.

    Args:
        samples: makes them.
        dataset: makes the others.
        keys: of the batch.
        task: at which size and strength, with which seeds.
        request: is told that it was heard.
    """
    seed = mix(task.row_seed)
    with contextlib.suppress(Exception):
        numbers = [number for number in map(_whole, keys) if number is not None]
        samples.prepare(numbers, task.image_size)

    def one(place: int, key: Any) -> Any:
        number = _whole(key)
        if number is None:
            return dataset[key]
        request.size_was_asked = request.strength_was_asked = True
        own = extend(seed, number)  # as in `engine.fill`
        if task.stride:
            own = extend(own, task.place + place * task.stride)
        return samples.sample(Item(number, task.image_size, own, task.strength))

    return one


def _whole(key: Any) -> int | None:
    """The sample number that a key is; None for any other key."""
    if type(key) is int or isinstance(key, np.integer):
        return int(key)
    if isinstance(key, torch.Tensor) and key.dim() == 0:
        found = key.item()
        return found if type(found) is int else None
    return None


def check(request: Request, dataset: object) -> None:
    """Refuse a batch that cannot be what the loader says that it is.

    Raises:
        UsageError: a size or a strength was requested, and nothing asked for it.
    """
    kind = type(dataset).__name__
    if request.size is not None and not request.size_was_asked:
        raise UsageError(
            f"schedule/image_size was given, and nothing in {kind} asked for the size: the batch "
            f"would not be at {request.size} px. Use feedline.per_size(...) or "
            "feedline.image_size() in the transform, or leave the schedule's size out"
        )
    if request.strength != 1 and not request.strength_was_asked:
        raise UsageError(
            f"the schedule says strength {request.strength:g}, and nothing in {kind} asked for it: "
            "the augmentation would not be weakened. Use feedline.augmentation_strength() in the "
            "transform, or leave the schedule's strength out"
        )
