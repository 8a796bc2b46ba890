"""A phase of a schedule as it is forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline.diagnose.step_load import Limit
from feedline.forecast.text import counted
from feedline.forecast.what_if import PhaseThen

__all__ = ["PhaseForecast"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseForecast:
    """A phase to come; its rates are images/s, or steps/s.

    Args:
        size: in pixels; None where batches are no images of one size.
        epochs: how many it has.
        then: with so many workers as are asked for.
        free: what the step takes with data for free.
        more: how many times as many that is as at the largest size.
        workers: that are asked for, on
        cores: so many.
        needed: workers with which steps do not wait; None where no number is sure to be enough.
        needed_cores: that these and the step need.
        level_px: the largest measured level with which those that are asked for keep up.
        seconds: that it takes; None where the images of an epoch are not known.
        basis: what it follows from where it was not measured itself.
        uneven: some batches are late although these workers are enough on average.
    """

    size: int | None
    epochs: int
    then: PhaseThen
    free: float
    more: float
    workers: int
    cores: int
    needed: int | None
    needed_cores: int
    level_px: int | None
    seconds: float | None
    basis: str
    uneven: bool = False

    @property
    def limit(self) -> Limit:
        """What bounds it."""
        return self.then.limit

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "image_size": self.size,
            "epochs": self.epochs,
            "rate": self.then.then,
            "step_takes": self.free,
            "times_the_largest_size": self.more,
            "num_workers": self.workers,
            "limit": self.limit,
            "num_workers_needed": self.needed,
            "cores_needed": self.needed_cores,
            "batches_come_unevenly": self.uneven,
            "level_px": self.level_px,
            "seconds": self.seconds,
            "basis": self.basis or "measured",
        }

    def advice(self, largest: int | None, unit: str) -> str:
        """What it needs, in a sentence.

        Args:
            largest: the largest size of the schedule, in pixels; None where there is but one.
            unit: of its rates.
        """
        at = f"at {self.size} px" if self.size else "in each batch"
        takes = f"{at} the step takes {self.free:.0f} {unit}"
        if largest is not None and self.size != largest:
            takes = f"{at} the step takes {self.more:.1f} times the images of {largest} px"
        crew = counted(self.workers, "worker")
        on = f"{crew} on {counted(self.cores, 'core')}"
        given = f"{on} make{'s' * (self.workers == 1)} {self.then.then:.0f} {unit}"
        if not self.workers:
            given = f"without workers it gets {self.then.then:.0f} {unit}"
        if self.limit == "step":
            said = f"{takes}, and {crew} keep{'s' * (self.workers == 1)} up"
        elif self.uneven:
            said = (
                f"{takes}: batches come unevenly, so that some are late although workers are "
                f"enough on average; more of them, or more batches ahead, hide more of it; {given}"
            )
        elif self.needed is None:
            said = f"{takes}: no number of workers keeps up; {given}"
        else:
            are = "is" if self.needed == 1 else "are"
            said = f"{takes}: {self._needed()} {are} needed; {given}"
        return f"{said} ({self.basis})" if self.basis else said

    def _needed(self) -> str:
        needed = counted(self.needed or 0, "worker")
        short_of_cores = self.needed_cores > self.cores
        if short_of_cores:
            needed += f" on {counted(self.needed_cores, 'core')}"
        if self.level_px:
            return f"{needed} or the {self.level_px} px level"
        if short_of_cores and self.size:
            share = self.cores / self.needed_cores
            needed += f", or a cache whose copies take {share:.0%} of the work of an image or less,"
        return needed
