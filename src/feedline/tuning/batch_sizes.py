"""What is known of batch sizes: the largest that fits for each phase, and how that was found.

Guarantees: pure; what is printed is said from this alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from feedline.plan.schedule import Phase, Schedule
from feedline.tuning.batch_search import BatchTrial

__all__ = ["BatchSizes", "PhaseBatch"]

_GB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseBatch:
    """One phase's batch.

    Args:
        phase: of the schedule, with the batch size.
        peak: bytes that a step takes at most; on a device those that torch has reserved.
        bound: why it is not larger: "memory", "most", or "asked" where the schedule named it.
        trials: in their order; empty where it was estimated.
    """

    phase: Phase
    peak: int
    bound: Literal["memory", "most", "asked"]
    trials: tuple[BatchTrial, ...] = ()

    @property
    def rows(self) -> int:
        """Images of a batch."""
        assert self.phase.batch_size is not None, "a phase is made with what was found"
        return self.phase.batch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """The largest batch of each phase.

    Args:
        phases: in the order of the schedule.
        how: by trial on a device, or by an estimate.
        where: the device, or the memory it was estimated for, in words.
        room: bytes that a batch may take.
        whole: bytes that a training can have there.
    """

    phases: tuple[PhaseBatch, ...]
    how: Literal["trial", "estimate"]
    where: str
    room: int
    whole: int

    @property
    def schedule(self) -> Schedule:
        """The schedule with these batch sizes."""
        return Schedule(tuple(each.phase for each in self.phases))

    @property
    def largest(self) -> int:
        """Rows of the largest batch of any phase."""
        return max(each.rows for each in self.phases)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, memory in bytes."""
        return {
            "how": self.how,
            "where": self.where,
            "memory_bytes": self.whole,
            "usable_bytes": self.room,
            "schedule": str(self.schedule),
            "phases": [
                {
                    "image_size": each.phase.size,
                    "batch_size": each.rows,
                    "peak_bytes": each.peak,
                    "bound": each.bound,
                    "trials": [
                        {"batch_size": trial.rows, "peak_bytes": trial.peak, "fits": trial.fits}
                        for trial in each.trials
                    ],
                }
                for each in self.phases
            ],
        }

    def __str__(self) -> str:
        """What was found, a line for each phase, and the schedule with it."""
        found = "found by trial" if self.how == "trial" else "estimated, not measured"
        lines = [
            f"batch sizes, {found}, for {self.where}: up to {self.room / _GB:.1f} of "
            f"{self.whole / _GB:.1f} GB, the rest is left free"
        ]
        for each in self.phases:
            why = {
                "memory": "the largest that fits",
                "most": "no larger one was asked for",
                "asked": "as the schedule says",
            }[each.bound]
            tried = f", {len(each.trials)} trials" if each.trials else ""
            lines.append(
                f"  {each.phase.size} px {each.rows:6} images, {each.peak / _GB:5.1f} GB "
                f"({why}{tried})"
            )
        lines.append(f"schedule={str(self.schedule)!r}")
        return "\n".join(lines)
