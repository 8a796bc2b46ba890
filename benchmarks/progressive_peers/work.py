"""Request to a contestant: a whole run through a schedule of image sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from feedline import Schedule

__all__ = ["RATIO", "SCALE", "Stage", "Work"]

SCALE = (0.25, 1.0)
RATIO = (3 / 4, 4 / 3)


class Stage(NamedTuple):
    """A phase of the schedule with its batch size."""

    size: int
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Work:
    """A progressive run.

    Args:
        folder: folder with one sub-folder of JPEG files per class.
        schedule: phases in feedline's text form.
        batch_size: batch size of phases that have none.
        workers: number of loader processes.
        device: device that the step needs its batches on; "" to leave them as loaded.
    """

    folder: str
    schedule: str
    batch_size: int
    workers: int
    device: str

    @property
    def stages(self) -> list[Stage]:
        """Phases in order."""
        return [
            Stage(phase.image_size, phase.epochs, phase.batch_size or self.batch_size)
            for phase in Schedule.parse(self.schedule).phases
        ]

    @property
    def on_gpu(self) -> bool:
        """Return True if batches must be copied to a GPU."""
        return self.device.startswith("cuda")
