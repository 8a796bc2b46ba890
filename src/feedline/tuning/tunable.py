"""Interface of a loader for a step benchmark: endless batches and changeable settings.

`feedline_loader.py` implements it for a feedline.DataLoader, whose workers stay alive, and
`torch_loader.py` for torch's, which is copied for each setting.
"""

from __future__ import annotations

from typing import Any, Protocol

from feedline.order.schedule import Phase
from feedline.timing.stage_page import StageTimings
from feedline.tuning.search import SearchSpace
from feedline.tuning.trial import LoaderSetting

__all__ = ["NO_BATCH", "TunableLoader"]

NO_BATCH = (
    "the loader returns no batch, so nothing can be tuned: check whether its dataset or sampler is "
    "empty, or smaller than one batch with drop_last=True"
)


class TunableLoader(Protocol):
    """A loader whose settings are tried."""

    @property
    def start(self) -> LoaderSetting:
        """Current settings, the first to be tried."""
        ...

    @property
    def search_space(self) -> SearchSpace:
        """Settings to try besides the number of workers."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None if that varies or is unknown."""
        ...

    def next(self) -> Any:
        """Return the next batch, epoch after epoch.

        Raises:
            UsageError: an epoch has no batch.
            Exception: any error of the dataset.
        """
        ...

    def change(self, setting: LoaderSetting) -> int:
        """Apply a setting.

        Returns:
            Number of following batches that were loaded, at least in part, with the previous one.

        Raises:
            UsageError: not enough memory.
        """
        ...

    @property
    def all_started(self) -> bool:
        """True if all workers have started."""
        ...

    @property
    def start_s(self) -> float | None:
        """Seconds until newly started workers returned a batch; None if they ran before."""
        ...

    def stage_timings(self) -> StageTimings:
        """Return the stage timings of all workers; empty if unknown."""
        ...

    @property
    def phases(self) -> list[Phase]:
        """Phases to tune, one for each image size; a single one if there are no sizes."""
        ...

    def begin(self, phase: Phase) -> None:
        """Load endless batches of one phase."""
        ...

    def close(self) -> None:
        """Restore the loader's settings and position."""
        ...
