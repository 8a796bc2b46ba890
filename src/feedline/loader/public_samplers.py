"""Samplers in a loader's public attributes.

Frameworks read a loader's `sampler` and `batch_sampler`: they ask for a length, set the epoch, and
replace a sampler that does not distribute samples over ranks (i.e. is not a DistributedSampler).
Some build a torch DataLoader from the parts; it requests batches from these samplers, which detect
that.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler

from feedline.errors import UsageError
from feedline.order.planned_order import SEQUENTIAL, Order
from feedline.sampling.draws import draws_for_feedline

__all__ = ["PlannedSampler", "PublicBatchSampler"]


class PlannedSampler(DistributedSampler[Any]):
    """Planned order, as a sampler with an epoch. It can outlive its loader.

    Args:
        order: order of all epochs.
        dataset: dataset of the indices.
        loader: loader whose epoch it follows, and whose `set_epoch` it calls.
    """

    def __init__(self, order: Order, dataset: Any, loader: Any) -> None:
        self.follow(order, dataset)
        self._first_order = order
        self._loader: weakref.ref[Any] = weakref.ref(loader)
        self._telling = False
        self._drawn: int | None = None  # the epoch that was last drawn for another loader

    def follow(self, order: Order, dataset: Any) -> None:
        """Set the attributes of a DistributedSampler from an order."""
        epoch = getattr(self, "epoch", 0)
        super().__init__(
            dataset,
            num_replicas=order.world_size,
            rank=order.rank,
            shuffle=order.sample_order != SEQUENTIAL,
            seed=order.seed,
            drop_last=order.drop_last,
        )
        self.epoch = epoch

    @property
    def _order(self) -> Order:
        """Current order of the loader; the first one if the loader is gone."""
        return getattr(self._loader(), "order", None) or self._first_order

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader's next iteration."""
        super().set_epoch(epoch)
        loader = self._loader()
        if loader is not None and not self._telling:
            self._telling = True  # a loader whose batch sampler was wrapped tells its samplers
            try:
                loader.set_epoch(epoch)
            finally:
                self._telling = False

    def _now(self) -> int:
        loader = self._loader()
        return self.epoch if loader is None else loader.epoch

    def __iter__(self) -> Iterator[int]:
        """Sample indices of this rank's part of the epoch, in order.

        With `drop_last` as well: an incomplete batch is dropped by the batch sampler, or kept if a
        framework sets it to keep that, as Lightning does to predict.
        """
        epoch = self._now()
        if self.shuffle and epoch == self._drawn:
            warnings.warn(
                f"another loader draws epoch {epoch} of a feedline.DataLoader with a seed again: "
                "that loader's own epochs do not advance. Call set_epoch before each pass, or "
                "remove seed= if a framework makes the order (e.g. ignite's DeterministicEngine)",
                RuntimeWarning,
                stacklevel=2,
            )
        self._drawn = epoch
        order, left = replace(self._order, drop_last=False), len(self)
        for step in range(order.steps(epoch)):
            samples = order.batch(epoch, step).samples[:left]
            yield from samples.tolist()
            left -= len(samples)

    def __len__(self) -> int:
        """Number of samples of this rank in an epoch: the same on every rank, by padding or
        dropping.
        """
        order = self._order
        padded = order.length + (0 if order.drop_last else order.world_size - 1)
        return padded // order.world_size


class PublicBatchSampler(BatchSampler):
    """A loader's batch sampler. It has no constructor: frameworks call BatchSampler's."""

    even_batches = True  # Accelerate reads and sets it: every rank has equally many batches

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "batch_size" and vars(self).get(name, value) != value:
            raise UsageError(
                f"cannot set the batch sampler's batch_size to {value}: a loader with a seed or a "
                "schedule plans its batches; put the batch sizes into the schedule, e.g. "
                '"ownx1@32,ownx1@64", or remove seed and schedule'
            )
        super().__setattr__(name, value)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a sampler that has epochs."""
        tell = getattr(self.sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Keys of each batch; warns if another loader draws them."""
        if not draws_for_feedline():
            self._check_share(sys._getframe(1).f_locals.get("self"))
            warnings.warn(
                "another loader draws from the batch sampler of a feedline.DataLoader, so "
                "feedline's engine is not used. A framework may have replaced the loader by a "
                "torch DataLoader. With Accelerate use prepare and its method skip_first_batches; "
                "with transformers return feedline.frameworks.stepwise.Stepwise(loader)",
                RuntimeWarning,
                stacklevel=2,
            )
        return super().__iter__()

    def _check_share(self, asking: object) -> None:
        """Check that Accelerate does not distribute a rank's batches over the ranks again."""
        ranks = getattr(self.sampler, "num_replicas", 1)
        if type(asking).__name__ == "BatchSamplerShard" and ranks > 1:
            raise UsageError(
                f"the loader distributes its samples over {ranks} ranks, and Accelerate's function "
                "prepare_data_loader would distribute this rank's share again; call "
                "accelerator.prepare(loader), or remove seed and schedule from the loader"
            )
