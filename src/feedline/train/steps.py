"""A run counted in steps: which batches make one, how many there are, and how far one of them is.

Guarantees: pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from feedline.train.recipe import Recipe

__all__ = ["Steps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """The steps of a run.

    Args:
        recipe: what is trained.
        batches_in: how many an epoch (from 0) has.
    """

    recipe: Recipe
    batches_in: Callable[[int], int]

    def parts(self, epoch: int, batch: int) -> tuple[int, int]:
        """Which of the batches it is that make one step of the optimizer, and of how many."""
        most = self.recipe.accumulate
        part = batch % most
        return part, min(most, self.batches_in(epoch) - (batch - part))

    def of(self, epoch: int) -> int:
        """Of the optimizer, in an epoch."""
        return -(-self.batches_in(epoch) // self.recipe.accumulate)

    @property
    def total(self) -> int:
        """Of the optimizer, over all epochs."""
        return sum(map(self.of, range(self.recipe.epochs)))

    def progress(self, epoch: int, batch: int) -> float:
        """The share of all samples seen before a step, so that the last step's is 1.

        Each epoch has the same samples, so they count by epochs, whatever the batches' sizes are.
        """
        last = self.recipe.epochs - 1
        batches = self.batches_in(last)
        _, parts = self.parts(last, batches - 1)
        whole = last + (batches - parts) / batches
        return (epoch + batch / self.batches_in(epoch)) / whole if whole else 0.0
