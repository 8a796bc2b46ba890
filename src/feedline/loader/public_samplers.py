"""The samplers that a loader shows.

Frameworks look at a loader's `sampler` and `batch_sampler`: they ask for a length, tell them the
epoch, and put one of their own in the place of a sampler that does not share samples out among
ranks (which is told by its being a DistributedSampler). Some build a stock DataLoader of the parts;
it asks these samplers for batches, and so is noticed.
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
from feedline.plan.batches import Plan
from feedline.plan.order import SEQUENTIAL
from feedline.sampling.draws import draws_for_feedline

__all__ = ["PlannedSampler", "PublicBatchSampler"]


class PlannedSampler(DistributedSampler[Any]):
    """The order of a plan, as a sampler that is told the epoch. It can outlive its loader.

    Args:
        plan: makes the order.
        dataset: what the numbers are of.
        loader: whose epoch it follows, and which is told of `set_epoch`.
    """

    def __init__(self, plan: Plan, dataset: Any, loader: Any) -> None:
        self.follow(plan, dataset)
        self._first_plan = plan
        self._loader: weakref.ref[Any] = weakref.ref(loader)
        self._telling = False
        self._drawn: int | None = None  # the epoch that was last drawn for another loader

    def follow(self, plan: Plan, dataset: Any) -> None:
        """Show a plan in the attributes that a DistributedSampler has."""
        epoch = getattr(self, "epoch", 0)
        super().__init__(
            dataset,
            num_replicas=plan.world_size,
            rank=plan.rank,
            shuffle=plan.order != SEQUENTIAL,
            seed=plan.seed,
            drop_last=plan.drop_last,
        )
        self.epoch = epoch

    @property
    def _plan(self) -> Plan:
        """The loader's plan as it is now; as it was at first where the loader is gone."""
        return getattr(self._loader(), "plan", None) or self._first_plan

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` what the loader's next iteration runs."""
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
        """The sample numbers of this rank's part of the epoch, in order.

        With `drop_last` as well: what fills no batch is left out by the batch sampler, or kept
        where a framework sets it to keep that, as Lightning does to predict.
        """
        epoch = self._now()
        if self.shuffle and epoch == self._drawn:
            warnings.warn(
                f"another loader draws epoch {epoch} of a feedline.DataLoader with a seed once "
                "more: that loader's own epochs do not go on with it. Call set_epoch before each "
                "pass, or leave seed out where a framework makes the order (as ignite's "
                "DeterministicEngine does)",
                RuntimeWarning,
                stacklevel=2,
            )
        self._drawn = epoch
        plan, left = replace(self._plan, drop_last=False), len(self)
        for step in range(plan.steps(epoch)):
            samples = plan.batch(epoch, step).samples[:left]
            yield from samples.tolist()
            left -= len(samples)

    def __len__(self) -> int:
        """How many samples this rank gets in an epoch: as many as any other, by padding or not."""
        plan = self._plan
        padded = plan.length + (0 if plan.drop_last else plan.world_size - 1)
        return padded // plan.world_size


class PublicBatchSampler(BatchSampler):
    """A loader's batch sampler, with no constructor of its own: frameworks call BatchSampler's."""

    even_batches = True  # Accelerate reads and sets it: every rank has equally many batches

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "batch_size" and vars(self).get(name, value) != value:
            raise UsageError(
                f"the batch sampler's batch_size is to be {value}, and a loader with a seed or a "
                'schedule plans its batches itself: name their sizes in the schedule, as "ownx1@32'
                ',ownx1@64", or leave seed and schedule out'
            )
        super().__setattr__(name, value)

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to a sampler that has epochs."""
        tell = getattr(self.sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """The keys of each batch; says so where it is not feedline that asks."""
        if not draws_for_feedline():
            self._check_share(sys._getframe(1).f_locals.get("self"))
            warnings.warn(
                "another loader draws from the batch sampler of a feedline.DataLoader: has a "
                "framework put a stock DataLoader in its place? Then nothing of feedline's engine "
                "is at work. With Accelerate use prepare and its method skip_first_batches; "
                "with transformers return feedline.frameworks.stepwise.Stepwise(loader)",
                RuntimeWarning,
                stacklevel=2,
            )
        return super().__iter__()

    def _check_share(self, asking: object) -> None:
        """Refuse to have a rank's batches dealt out to the ranks once more, by Accelerate."""
        ranks = getattr(self.sampler, "num_replicas", 1)
        if type(asking).__name__ == "BatchSamplerShard" and ranks > 1:
            raise UsageError(
                f"the loader shares its samples among {ranks} ranks, and Accelerate's function "
                "prepare_data_loader would share this rank's out once more; call "
                "accelerator.prepare(loader), or leave seed and schedule out of the loader"
            )
