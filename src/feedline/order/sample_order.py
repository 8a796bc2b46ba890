"""Order of samples and sampling weights: samples, image size and seed of each planned batch.

`Order.batch(epoch, step)` is the same in every process, after a restart and with any number of
workers. A position is an index into the order of an epoch. Over all ranks an epoch has every
position once, except that some are repeated as padding to equal shares, or dropped with
`drop_last`.
Saved states hold the names of sample orders, so the meaning of a name never changes. Random orders
use numpy's legacy RandomState because its stream is frozen (NEP 19), unlike Generator's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from feedline.errors import UsageError
from feedline.order.batch_spec import BatchSpec
from feedline.order.schedule import Phase, Schedule, is_count
from feedline.order.seeds import mix

SHUFFLED, SEQUENTIAL = "shuffled", "sequential"
WEIGHTED, WEIGHTED_ONCE = "weighted", "weighted without replacement"

BLOCK_SIZE = 256
"""Consecutive samples that stay together in "window:N" orders. JPEGs of 256 px and 25 kB are 6 MB
per block: a disk of 150 MB/s reads it in 43 ms, four times its seek time. Part of the definition of
"window:N", so it never changes."""

_WINDOW = re.compile("window:([1-9][0-9]{0,11})")  # without leading zeros: one name per order


class Weights:
    """Sampling weights. With replacement, samples of high weight are drawn more often, without
    replacement earlier.

    Args:
        values: one weight per sample, in order; copied.

    Raises:
        UsageError: not a sequence of finite numbers of at least 0, or none is positive.
    """

    def __init__(self, values: object) -> None:
        try:
            array = np.asarray(values)
        except ValueError as error:  # nested, with different lengths
            text = f"must be a sequence of numbers: {error}"
            raise UsageError(text, argument="weights") from None
        if array.ndim != 1 or array.dtype.kind not in "biuf":
            raise UsageError(
                "must be a sequence of numbers, one per sample, got "
                f"{type(values).__name__} of shape {array.shape} and dtype {array.dtype}",
                argument="weights",
            )
        self.values: NDArray[np.float64] = array.astype(np.float64)
        self.values.flags.writeable = False
        invalid = np.flatnonzero(~(np.isfinite(self.values) & (self.values >= 0)))
        if len(invalid):
            raise UsageError(
                "must be finite numbers of at least 0, got "
                f"weights[{invalid[0]}]={self.values[invalid[0]]}",
                argument="weights",
            )
        self.positive = int(np.count_nonzero(self.values))
        """Number of samples with a weight above 0."""
        if not self.positive:
            raise UsageError(
                f"must include a number above 0, got {len(self.values)} weights of 0",
                argument="weights",
            )
        self.digest = xxhash.xxh3_64_hexdigest(self.values.data)

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Weights) and self.digest == other.digest)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Weights({len(self)} values, digest {self.digest})"

    @cached_property
    def _scaled(self) -> NDArray[np.float64]:
        """Values scaled to at most 1, so that their sum is finite."""
        scaled: NDArray[np.float64] = self.values / self.values.max()
        return scaled

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        """End of each sample's interval in the cumulative weights."""
        return np.cumsum(self._scaled)

    def draw_with_replacement(self, rng: np.random.RandomState) -> NDArray[np.int64]:
        """Draw a sample for each position of an epoch, shape (length,)."""
        points = rng.random_sample(len(self))
        points *= self._cumulative[-1]  # below it: the largest point is 1 - 2**-53
        # Sorting, searching and shuffling takes a third of the time of searching unsorted points.
        points.sort()
        samples = np.searchsorted(self._cumulative, points, side="right").astype(
            np.int64, copy=False
        )
        rng.shuffle(samples)
        return samples

    def draw_without_replacement(self, rng: np.random.RandomState) -> NDArray[np.int64]:
        """Draw each sample once, shape (length,)."""
        # Efraimidis, Spirakis: "Weighted random sampling with a reservoir", 2006. The probability
        # that a sample has the smallest key E/w is proportional to its weight w.
        keys = rng.standard_exponential(len(self))
        with np.errstate(divide="ignore", over="ignore"):  # tiny and zero weights
            keys /= self._scaled
        return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def window_size(sample_order: str) -> int | None:
    """Number of samples in a window of the order "window:N"; None for any other name."""
    match = _WINDOW.fullmatch(sample_order)
    return None if match is None else int(match[1])


def _check_sample_order(sample_order: str, weights: Weights | None) -> None:
    names = [SHUFFLED, SEQUENTIAL] if weights is None else [WEIGHTED, WEIGHTED_ONCE]
    if sample_order not in names and (weights is not None or window_size(sample_order) is None):
        names += ["window:N"] if weights is None else []
        text = f"must be one of {', '.join(names)}, got {sample_order!r}"
        raise UsageError(text, argument="order")


def describe_sample_order(sample_order: str) -> str:
    """Description of a sample order, for `explain`."""
    window = window_size(sample_order)
    if window is None:
        return sample_order
    return f"shuffled in windows of {window} samples, blocks of {BLOCK_SIZE}"


@lru_cache(maxsize=3)
def epoch_order(
    length: int, seed: int, epoch: int, sample_order: str, weights: Weights | None = None
) -> NDArray[np.int64]:
    """Sample at each position of an epoch. Read-only, shape (length,), int64."""
    _check_sample_order(sample_order, weights)
    if sample_order == SEQUENTIAL:
        samples = np.arange(length, dtype=np.int64)
    else:
        bits = mix(seed, epoch, length)
        rng = np.random.RandomState([bits & 0xFFFFFFFF, bits >> 32])
        if weights is not None and sample_order == WEIGHTED:
            samples = weights.draw_with_replacement(rng)
        elif weights is not None:
            samples = weights.draw_without_replacement(rng)
        elif (window := window_size(sample_order)) is not None:
            samples = _shuffle_in_windows(rng, length, window)
        else:
            samples = rng.permutation(length).astype(np.int64, copy=False)
    samples.flags.writeable = False
    return samples


def _shuffle_in_windows(rng: np.random.RandomState, length: int, window: int) -> NDArray[np.int64]:
    """Shuffle blocks, cut them into windows, and shuffle each window.

    With 1,281,167 samples and windows of 16384, a batch of 256 reads 63 blocks on average.
    """
    blocks = rng.permutation(-(-length // BLOCK_SIZE)).astype(np.int64, copy=False)
    samples = (blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE, dtype=np.int64)).ravel()
    samples = samples[samples < length]  # the last block may be short
    for start in range(0, length, window):
        rng.shuffle(samples[start : start + window])
    return samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Order of all epochs, for one rank.

    Args:
        length: number of samples.
        schedule: phases.
        batch_size: rows per batch on each rank, for phases without a batch size.
        sample_order: "shuffled", "sequential" or "window:N"; with weights "weighted" or "weighted
            without replacement".
        weights: weights of the samples.
        drop_last: drop the last batch of an epoch if it is not full on every rank.
        seed: seed of all randomness.
        rank: rank of this process.
        world_size: number of processes that share each epoch.

    Raises:
        UsageError: a value is out of range, or no epoch would have a batch.
    """

    length: int
    schedule: Schedule
    batch_size: int
    sample_order: str = SHUFFLED
    drop_last: bool = False
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    weights: Weights | None = None

    def __post_init__(self) -> None:
        for name in ("length", "batch_size", "world_size"):
            value = getattr(self, name)
            if not is_count(value) or value < 1:
                raise UsageError(
                    f"must be a whole number of at least 1, got {value!r}", argument=name
                )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise UsageError(f"must be a whole number, got {self.seed!r}", argument="seed")
        _check_sample_order(self.sample_order, self.weights)
        if self.weights is not None:
            self._check_weights(self.weights)
        if not is_count(self.rank) or self.rank >= self.world_size:
            raise UsageError(
                f"must be from 0 to world_size - 1 = {self.world_size - 1}, got {self.rank!r}",
                argument="rank",
            )
        for phase in self.schedule.phases:
            rows = self.global_batch_size(phase)
            if self.drop_last and rows > self.length:
                raise UsageError(
                    f"drop_last=True with a global batch size of {rows} drops all {self.length} "
                    "samples; use a smaller batch_size or drop_last=False"
                )

    def _check_weights(self, weights: Weights) -> None:
        if len(weights) != self.length:
            raise UsageError(
                f"must be one number per sample, got {len(weights)} weights for {self.length} "
                "samples",
                argument="weights",
            )
        if self.sample_order == WEIGHTED_ONCE and weights.positive < self.length:
            raise UsageError(
                f"replacement=False draws each of the {self.length} samples once, but only "
                f"{weights.positive} have a weight above 0. Use replacement=True, or a "
                "torch.utils.data.Subset of the samples with a positive weight"
            )

    def global_batch_size(self, phase: Phase) -> int:
        """Rows of a full batch of a phase, over all ranks."""
        return (phase.batch_size or self.batch_size) * self.world_size

    def steps(self, epoch: int) -> int:
        """Batches of an epoch; the same on every rank."""
        full, rest = divmod(self.length, self.global_batch_size(self.schedule.phase_at(epoch)))
        return full + (rest > 0 and not self.drop_last)

    @property
    def total_steps(self) -> int:
        """Batches of the whole schedule."""
        steps, epoch = 0, 0
        for phase in self.schedule.phases:
            steps += phase.epochs * self.steps(epoch)
            epoch += phase.epochs
        return steps

    def _samples(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Samples at positions `start:stop` of an epoch, as far as it has them."""
        if self.sample_order == SEQUENTIAL:  # without an array of all samples
            return np.arange(start, min(stop, self.length), dtype=np.int64)
        return epoch_order(self.length, self.seed, epoch, self.sample_order, self.weights)[
            start:stop
        ]

    def batch(self, epoch: int, step: int) -> BatchSpec:
        """Return this rank's batch at a step of an epoch.

        Rank r gets every world_size-th row of the global batch, starting at row r, like torch's
        DistributedSampler. If the rows do not divide evenly, they are padded from the start of the
        order, again like DistributedSampler, so that every rank gets the same number.

        Raises:
            IndexError: the epoch has no such step.
        """
        if not 0 <= step < self.steps(epoch):
            raise IndexError(f"epoch {epoch} has {self.steps(epoch)} steps, got step {step}")
        phase = self.schedule.phase_at(epoch)
        start = step * self.global_batch_size(phase)
        rows = self._samples(epoch, start, start + self.global_batch_size(phase))
        missing = -len(rows) % self.world_size
        if missing:
            # np.resize repeats the samples if there are fewer of them than ranks.
            rows = np.concatenate([rows, np.resize(self._samples(epoch, 0, missing), missing)])
        return BatchSpec(
            epoch=epoch,
            step=step,
            phase=phase,
            image_size=phase.image_size,
            samples=rows[self.rank :: self.world_size],
            # missing < world_size, so each of the last ranks pads one row.
            padding=int(self.rank >= self.world_size - missing),
            epoch_seed=mix(self.seed, epoch),
            rank=self.rank,
            # Row seeds depend on positions, so a row is the same on any number of ranks.
            first_position=start + self.rank,
            stride=self.world_size if self.sample_order == WEIGHTED else 0,
        )

    def identity(self, dataset: str) -> dict[str, Any]:
        """Values that determine the batches, JSON-able and independent of the number of ranks.

        `dataset` is the fingerprint of the dataset.
        """
        weights = {} if self.weights is None else {"weights": self.weights.digest}
        return {
            "dataset": dataset,
            "length": self.length,
            "seed": self.seed,
            "sample_order": self.sample_order,
            **weights,
            "drop_last": self.drop_last,
            "schedule": [
                {
                    "image_size": phase.image_size,
                    "epochs": phase.epochs,
                    "global_batch_size": self.global_batch_size(phase),
                    "strength": phase.strength,
                }
                for phase in self.schedule.phases
            ],
        }
