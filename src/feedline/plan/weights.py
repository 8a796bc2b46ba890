"""Weights of samples, and the orders drawn by weight.

Guarantees: as in `plan.order`, a pure function of weights, length, seed and epoch, from numpy's
frozen RandomState. Weights are equal if their values are.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import xxhash
from numpy.typing import NDArray

from feedline.errors import UsageError

__all__ = ["Weights"]


class Weights:
    """Weights of the samples: how often, or how early, each one is drawn.

    Args:
        values: one weight per sample, in order; copied.

    Raises:
        UsageError: not a sequence of finite numbers of at least 0, or none is positive.
    """

    def __init__(self, values: object) -> None:
        try:
            found = np.asarray(values)
        except ValueError as error:  # nested, with different lengths
            raise UsageError(f"weights must be a sequence of numbers: {error}") from None
        if found.ndim != 1 or found.dtype.kind not in "biuf":
            raise UsageError(
                "weights must be a sequence of numbers, one per sample, got "
                f"{type(values).__name__} of shape {found.shape} and dtype {found.dtype}"
            )
        self.values: NDArray[np.float64] = found.astype(np.float64)
        self.values.flags.writeable = False
        wrong = np.flatnonzero(~(np.isfinite(self.values) & (self.values >= 0)))
        if len(wrong):
            raise UsageError(
                "weights must be finite numbers of at least 0, got "
                f"weights[{wrong[0]}]={self.values[wrong[0]]}"
            )
        self.positive = int(np.count_nonzero(self.values))
        """Number of samples with a weight above 0."""
        if not self.positive:
            raise UsageError(
                f"at least one weight must be above 0, got {len(self.values)} weights of 0"
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
    def _ends(self) -> NDArray[np.float64]:
        """End of each sample's interval in the cumulative weights."""
        return np.cumsum(self._scaled)

    def with_replacement(self, state: np.random.RandomState) -> NDArray[np.int64]:
        """Draw a sample for each place of an epoch by weight, with replacement, shape (length,)."""
        points = state.random_sample(len(self))
        points *= self._ends[-1]
        # To sort, look up and shuffle takes a third of the time of looking up in random order.
        points.sort()
        samples = np.searchsorted(self._ends, points, side="right").astype(np.int64, copy=False)
        # A point may be rounded up to the very end of the line.
        np.minimum(samples, np.searchsorted(self._ends, self._ends[-1]), out=samples)
        state.shuffle(samples)
        return samples

    def without_replacement(self, state: np.random.RandomState) -> NDArray[np.int64]:
        """Draw each sample once by weight, without replacement, shape (length,).

        By exponential keys (Efraimidis, Spirakis: "Weighted random sampling with a reservoir",
        2006): the smallest of E/w is that of a sample with a probability in proportion to w.
        """
        keys = state.standard_exponential(len(self))
        with np.errstate(divide="ignore", over="ignore"):  # with far larger weights
            keys /= self._scaled
        return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
