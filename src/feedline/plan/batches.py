"""The plan: the samples and the image size of each batch.

Guarantees: `Plan.batch(epoch, step)` depends on its arguments and the plan's fields alone, so
it is the same in every process, after every restart and on any number of workers. Over all
ranks an epoch holds each place of its order exactly once, and so each sample, unless the order is
drawn with replacement (plus the padding that equal shares need, or minus the tail that `drop_last`
drops). At a given step every rank has the same number of rows, of one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import UsageError
from feedline.plan.order import (
    SHUFFLED,
    WEIGHTED,
    WEIGHTED_ONCE,
    epoch_order,
    order_named,
    share,
)
from feedline.plan.schedule import Phase, Schedule
from feedline.plan.seeds import mix
from feedline.plan.weights import Weights

__all__ = ["NO_NUMBER", "Batch", "Plan"]

NO_NUMBER = -(1 << 63)
"""Sample number of a key that is not a number, as user-defined samplers may give them."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One batch of one rank.

    Args:
        epoch: epoch, counted from 0.
        step: step within the epoch, counted from 0; the same on every rank.
        phase: phase of the schedule.
        image_size: side of the images in pixels; None if no size is set.
        samples: sample indices, shape (rows,), int64.
        padding: number of rows at the end that repeat samples of other rows.
        seed: 64-bit seed of the epoch. A row's seed is mix(seed, sample), or, if a sample may occur
            twice, mix(seed, sample, place + row * stride).
        place: place of the first row in the epoch's order.
        stride: distance between the places of two rows; 0 if row seeds do not depend on the place.
        rank: rank the batch belongs to.
        drawn: True if the batch comes from a user-defined sampler.
        keys: keys the sampler returned.
    """

    epoch: int
    step: int
    phase: Phase
    image_size: int | None
    samples: NDArray[np.int64]
    padding: int
    seed: int
    rank: int = 0
    drawn: bool = False
    keys: object = None
    place: int = 0
    stride: int = 0

    @property
    def asked(self) -> Any:
        """Keys or indices to request from a dataset to make the whole batch."""
        return self.keys if self.drawn else self.samples.tolist()

    @property
    def whole_seed(self) -> int:
        """Seed for randomness of the batch as a whole, 64 bits."""
        return mix(self.seed, self.step, self.rank)

    @property
    def rows(self) -> int:
        """Number of rows of the batch on this rank."""
        return len(self.samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Order of all epochs, for one rank.

    Args:
        length: number of samples.
        schedule: phases.
        batch_size: rows per rank, if a phase sets none.
        order: name of the order of samples in an epoch; see `plan.order.order_named`.
        weights: weights of the samples, for an order by weight; None for any other order.
        drop_last: drop the last batch of an epoch if it is not full on every rank.
        seed: seed of all randomness.
        rank: rank of this process.
        world_size: number of processes that share each epoch.

    Raises:
        UsageError: a value is out of range, or no epoch would hold a batch.
    """

    length: int
    schedule: Schedule
    batch_size: int
    order: str = SHUFFLED
    drop_last: bool = False
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    weights: Weights | None = None

    def __post_init__(self) -> None:
        for name in ("length", "batch_size", "world_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(
                    f"must be a whole number of at least 1, got {value!r}", argument=name
                )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise UsageError(f"seed must be a whole number, got {self.seed!r}")
        order_named(self.order, self.weights)  # refuses what names none
        self._check_weights()
        whole = isinstance(self.rank, int) and not isinstance(self.rank, bool)
        if not whole or not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"rank must be from 0 to world_size - 1 = {self.world_size - 1}, got {self.rank!r}"
            )
        for phase in self.schedule.phases:
            rows = self.global_batch_of(phase)
            if self.drop_last and rows > self.length:
                raise UsageError(
                    f"drop_last=True with a global batch size of {rows} drops all {self.length} "
                    "samples; use a smaller batch_size or drop_last=False"
                )

    def _check_weights(self) -> None:
        weights = self.weights
        if weights is None:
            return
        if len(weights) != self.length:
            raise UsageError(
                f"expected one weight per sample: got {len(weights)} weights for {self.length} "
                "samples"
            )
        if self.order == WEIGHTED_ONCE and weights.positive < self.length:
            raise UsageError(
                f"replacement=False draws each of the {self.length} samples once, but only "
                f"{weights.positive} have a weight above 0. Use replacement=True, or a "
                "torch.utils.data.Subset of the samples with a positive weight"
            )

    def global_batch_of(self, phase: Phase) -> int:
        """Rows of a full batch of a phase, over all ranks."""
        return (phase.batch_size or self.batch_size) * self.world_size

    def global_batch(self, epoch: int) -> int:
        """Rows of a full batch, over all ranks."""
        return self.global_batch_of(self.schedule.phase_at(epoch))

    def steps(self, epoch: int) -> int:
        """Batches of an epoch; the same on every rank."""
        full, rest = divmod(self.length, self.global_batch(epoch))
        return full + (rest > 0 and not self.drop_last)

    @property
    def total_steps(self) -> int:
        """Batches of the whole schedule."""
        steps, epoch = 0, 0
        for phase in self.schedule.phases:
            steps += phase.epochs * self.steps(epoch)
            epoch += phase.epochs
        return steps

    def batch(self, epoch: int, step: int) -> Batch:
        """Return the batch at a step of an epoch; `step` must be below steps(epoch)."""
        phase = self.schedule.phase_at(epoch)
        rows = self.global_batch_of(phase)
        start, stop = step * rows, min((step + 1) * rows, self.length)
        if not 0 <= step < self.steps(epoch):
            raise IndexError(f"epoch {epoch} has {self.steps(epoch)} steps, got step {step}")
        samples = epoch_order(self.length, self.seed, epoch, self.order, self.weights)
        missing = -(stop - start) % self.world_size
        return Batch(
            epoch=epoch,
            step=step,
            phase=phase,
            image_size=phase.size,
            samples=share(samples, start, stop, self.rank, self.world_size),
            # Fewer rows are missing than there are ranks: each of the last ranks pads one.
            padding=int(self.rank >= self.world_size - missing),
            seed=mix(self.seed, epoch),
            rank=self.rank,
            # Places in the epoch, so that a row is the same on any number of ranks.
            place=start + self.rank,
            stride=self.world_size if self.order == WEIGHTED else 0,
        )
