"""A user's Dataset behind a loader: looked at when an iteration begins, and made by whoever can.

Guarantees: a torchvision pipeline that is recognised goes by rows, anything else by whole batches,
tensors in memory without workers; each time of the dataset as it is then.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch.utils.data import IterableDataset

from feedline.dataset.gather import gatherer
from feedline.dataset.renewal import digest
from feedline.dataset.source import DatasetSource
from feedline.loader.build import direct_maker, whole_maker
from feedline.loader.maker import Maker
from feedline.loader.way import Way

_TELLING_S = 0.02
"""How long it may take to tell whether a dataset has changed, where new workers cost a fork: what
that takes, about, for a training process of some gigabytes."""

__all__ = ["UserData", "fingerprint_of", "is_source", "usual_road"]


def is_source(dataset: object) -> bool:
    """Whether a dataset is one of feedline's own sources."""
    return all(hasattr(dataset, name) for name in ("fields", "load", "fingerprint"))


def fingerprint_of(dataset: object) -> str:
    """What a state says of a dataset: its own fingerprint, or else its class."""
    own = getattr(dataset, "fingerprint", None)
    if callable(own) and not isinstance(dataset, IterableDataset):
        return str(own())
    kind = type(dataset)
    return f"{kind.__module__}.{kind.__qualname__}"


def usual_road(context: Any) -> str:
    """How workers for a user's Dataset start: as asked, else as multiprocessing's would.

    Args:
        context: a multiprocessing context, or None.
    """
    if context is not None:
        asked: str = context.get_start_method()
        return asked
    method = multiprocessing.get_start_method(allow_none=True)
    method = method or multiprocessing.get_all_start_methods()[0]
    return method if sys.platform == "linux" else "spawn"


@dataclass(frozen=True)
class UserData:
    """A Dataset and all that says how its batches are made.

    Args:
        dataset: the user's.
        collate_fn: makes a batch of samples.
        batched: keys are lists, of which each makes a sample.
        worker_init_fn: called once in each worker.
        way: where the loader stands.
        ahead: batches that are made ahead by each worker.
        start_method: "fork", "forkserver" or "spawn".
        deadline_s: how long a batch may take; 0 for ever.
        in_order: hand batches out in order, not as soon as they are made.
        skip_errors: leave samples out that raise.
        pin: page-lock the tensors.
    """

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool
    worker_init_fn: Callable[[int], None] | None
    way: Way
    ahead: int
    start_method: str
    deadline_s: float
    in_order: bool
    skip_errors: bool
    pin: bool

    def start(self, workers: int) -> Maker:
        """Begin with the dataset as it is now."""
        source = DatasetSource(
            self.dataset,
            self.collate_fn,
            batched=self.batched,
            worker_init_fn=self.worker_init_fn,
            seed=torch.initial_seed() & (1 << 62) - 1,
            skip_errors=self.skip_errors,
        )
        if workers == 0 or gatherer(self.dataset, self.collate_fn) is not None:
            return direct_maker(source, self.way, self.collate_fn, pin=self.pin)
        return whole_maker(
            source,
            self.way,
            ahead=self.ahead,
            workers=workers,
            start_method=self.start_method,
            deadline_s=self.deadline_s,
            in_order=self.in_order,
            pin=self.pin,
        )

    def look(self) -> object:
        """What differs where the dataset is no more what it was; None where that is unknown."""
        forks = self.start_method == "fork"
        contents = self.dataset, self.collate_fn, self.worker_init_fn
        return digest(*contents, within_s=_TELLING_S if forks else inf)
