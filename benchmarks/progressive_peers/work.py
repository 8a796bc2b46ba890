"""What a contestant is asked to do: a whole run through a schedule of image sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from feedline import Schedule

__all__ = ["RATIO", "SCALE", "Stage", "Work"]

SCALE = (0.25, 1.0)
RATIO = (3 / 4, 4 / 3)


class Stage(NamedTuple):
    """A phase of the schedule; its batch size is always known."""

    size: int
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Work:
    """A progressive run.

    Args:
        folder: one sub-folder of JPEG files a class.
        schedule: the phases, in feedline's text form.
        batch_size: of the phases that name none.
        workers: processes that make batches.
        device: where the step wants its batches; "" where it takes them as they are made.
    """

    folder: str
    schedule: str
    batch_size: int
    workers: int
    device: str

    @property
    def stages(self) -> list[Stage]:
        """The phases in order."""
        return [
            Stage(phase.image_size, phase.epochs, phase.batch_size or self.batch_size)
            for phase in Schedule.parse(self.schedule).phases
        ]

    @property
    def on_gpu(self) -> bool:
        """Whether batches are to be copied to a GPU."""
        return self.device.startswith("cuda")
