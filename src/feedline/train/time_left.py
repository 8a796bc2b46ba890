"""How long a run still takes, by what its epochs have taken so far.

An image of a size costs what it cost in the latest epoch at that size and in the one under way. A
size that was not trained yet costs as many times the nearest one's as it has pixels: exact where
the step's own work decides, too much where the loader does. Of validation the latest pass at a size
counts, then pixels likewise; before the first one, a third of a training step, as the backward
pass takes about twice the forward's time.

Guarantees: pure; it says nothing before something was measured. What lies between epochs, starts of
workers and checkpoints, is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from feedline.train.journal import EpochRecord
from feedline.train.recipe import Recipe

__all__ = ["TimeLeft"]

_FORWARD = 1 / 3  # of a training step

_Pace = tuple[int, float]
"""Images, and the seconds they took."""


class TimeLeft:
    """The time that a run still takes.

    Args:
        recipe: its phases.
        images: of an epoch.
        val_images: that each epoch is validated on; 0 without validation.
        records: epochs that are finished.
    """

    def __init__(
        self, recipe: Recipe, *, images: int, val_images: int, records: Iterable[EpochRecord] = ()
    ) -> None:
        self._recipe = recipe
        self._images, self._val_images = images, val_images
        self._finished: dict[int, _Pace] = {}
        self._under_way: dict[int, _Pace] = {}
        self._validated: dict[int, _Pace] = {}
        for record in records:
            self.ended(record)

    def trained(self, size_px: int, images: int, seconds: float) -> None:
        """So many images of the epoch under way took so long."""
        self._under_way = {size_px: (images, seconds)}

    def ended(self, record: EpochRecord) -> None:
        """An epoch is finished, and validated."""
        self._under_way = {}
        if record.samples and record.seconds > 0:
            self._finished[record.size_px] = record.samples, record.seconds
        if record.val_samples and record.val_seconds:
            self._validated[self._val_px(record.epoch - 1)] = (
                record.val_samples,
                record.val_seconds,
            )

    def seconds(self, epoch: int, images: int = 0) -> float | None:
        """What is left.

        Args:
            epoch: under way, or to come, from 0.
            images: of it that are learnt.

        Returns:
            seconds; None where nothing was measured yet.
        """
        costs = self._costs()
        if not costs:
            return None
        left_s, first = 0.0, 0
        for phase in self._recipe.phases:
            end = first + phase.epochs
            epochs = end - max(first, epoch)
            if epochs > 0:
                done = images if first <= epoch < end else 0
                left_s += max(0, epochs * self._images - done) * _cost(costs, phase.size)
                px = self._recipe.val_size_of(phase)
                left_s += epochs * self._val_images * self._val_cost(costs, px)
            first = end
        return left_s

    def _val_px(self, epoch: int) -> int:
        return self._recipe.val_size_of(self._recipe.phase_at(epoch))

    def _costs(self) -> dict[int, float]:
        """Seconds of an image, by its size."""
        costs = {}
        for size in self._finished.keys() | self._under_way.keys():
            before, now = (each.get(size, (0, 0.0)) for each in (self._finished, self._under_way))
            images, seconds = before[0] + now[0], before[1] + now[1]
            if images and seconds > 0:
                costs[size] = seconds / images
        return costs

    def _val_cost(self, costs: dict[int, float], px: int) -> float:
        if not self._validated:
            return _FORWARD * _cost(costs, px)
        each = {size: seconds / images for size, (images, seconds) in self._validated.items()}
        return _cost(each, px)


def _cost(costs: dict[int, float], size: int) -> float:
    """Seconds of an image of a size, by those that are known."""
    near = min(costs, key=lambda known: abs(known**2 - size**2))
    return costs[near] * (size / near) ** 2
