"""What a rehearsal needs of a loader: batches without end, and settings that can be changed.

`own_loader.py` has it of a feedline.DataLoader, whose workers live on, and `torch_loader.py` of
torch's own, which is built anew each time.
"""

from __future__ import annotations

from typing import Any, Protocol

from feedline.plan.schedule import Phase
from feedline.trace.stage_timings import StageTimings
from feedline.tuning.search import Choices
from feedline.tuning.setting import Setting

__all__ = ["NO_BATCH", "Tunable"]

NO_BATCH = (
    "the loader gives no batch, so nothing can be tuned: look whether its dataset or sampler is "
    "empty, or has less than one batch and drop_last=True"
)


class Tunable(Protocol):
    """A loader whose settings are tried."""

    @property
    def start(self) -> Setting:
        """What it has now, and is tried first."""
        ...

    @property
    def choices(self) -> Choices:
        """What may change besides the number of workers."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Samples of a batch; None where that varies or is not known."""
        ...

    def next(self) -> Any:
        """The next batch, epoch after epoch.

        Raises:
            UsageError: an epoch gives none.
            Exception: whatever the dataset raises.
        """
        ...

    def change(self, setting: Setting) -> int:
        """Go on with a setting.

        Returns:
            how many batches still come that were made, or begun, with the one before.

        Raises:
            UsageError: there is no memory for it.
        """
        ...

    @property
    def whole(self) -> bool:
        """Whether all workers have begun to work."""
        ...

    @property
    def start_s(self) -> float | None:
        """Seconds until the workers that were started last gave a batch; None where they lived."""
        ...

    def spent(self) -> StageTimings:
        """What all workers have spent their time on; nothing where that is not known."""
        ...

    @property
    def phases(self) -> list[Phase]:
        """What is tuned, one for each image size; a single one where there are no sizes."""
        ...

    def begin(self, phase: Phase) -> None:
        """Make all batches from here on of a phase, without end."""
        ...

    def close(self) -> None:
        """Leave the loader as it was, where it stood."""
        ...
