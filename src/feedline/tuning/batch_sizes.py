"""Result of `find_batch_size`: the largest batch of each phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from feedline.order.schedule import Phase, Schedule
from feedline.tuning.batch_search import BatchTrial

__all__ = ["BatchSizes", "PhaseBatch"]

_GB = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseBatch:
    """Batch size of one phase.

    Args:
        phase: phase of the schedule, with the batch size.
        peak_bytes: peak memory of a step, as reserved by torch.
        bound: limit of the size: "memory", "most" (the given maximum) or "asked" (the schedule).
        trials: trials in order.
    """

    phase: Phase
    peak_bytes: int
    bound: Literal["memory", "most", "asked"]
    trials: tuple[BatchTrial, ...]

    @property
    def rows(self) -> int:
        """Images in a batch."""
        assert self.phase.batch_size is not None, "set by the search"
        return self.phase.batch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """Largest batch of each phase.

    Args:
        phases: in the order of the schedule.
        where: name of the device.
        usable_bytes: memory limit of a batch.
        memory_bytes: memory available to a training.
    """

    phases: tuple[PhaseBatch, ...]
    where: str
    usable_bytes: int
    memory_bytes: int

    @property
    def schedule(self) -> Schedule:
        """Schedule with these batch sizes."""
        return Schedule(tuple(each.phase for each in self.phases))

    @property
    def largest(self) -> int:
        """Largest batch of any phase."""
        return max(each.rows for each in self.phases)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-compatible dictionary, memory in bytes."""
        return {
            "where": self.where,
            "memory_bytes": self.memory_bytes,
            "usable_bytes": self.usable_bytes,
            "schedule": str(self.schedule),
            "phases": [
                {
                    "image_size": each.phase.image_size,
                    "batch_size": each.rows,
                    "peak_bytes": each.peak_bytes,
                    "bound": each.bound,
                    "trials": [
                        {
                            "batch_size": trial.rows,
                            "peak_bytes": trial.peak_bytes,
                            "fits": trial.fits,
                        }
                        for trial in each.trials
                    ],
                }
                for each in self.phases
            ],
        }

    def __str__(self) -> str:
        """Return a line for each phase, and the schedule."""
        lines = [
            f"batch sizes for {self.where}: at most {self.usable_bytes / _GB:.1f} of "
            f"{self.memory_bytes / _GB:.1f} GB, the rest stays free"
        ]
        for each in self.phases:
            limit = {
                "memory": "limited by memory",
                "most": "limited by the maximum",
                "asked": "set by the schedule",
            }[each.bound]
            lines.append(
                f"  {each.phase.image_size} px {each.rows:6} images, "
                f"{each.peak_bytes / _GB:5.1f} GB ({limit}, {len(each.trials)} trials)"
            )
        lines.append(f"schedule={str(self.schedule)!r}")
        return "\n".join(lines)
