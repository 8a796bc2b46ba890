"""What a training gave with one setting for a while."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.control.window import Window
from feedline.tuning.setting import Setting

__all__ = ["Trial"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Some steps with one setting.

    Args:
        setting: of the loader.
        window: what was seen of the steps.
        error: half of the 95% interval of a step's mean time, as a share of it; 1 where there were
            too few steps to tell.
        start_s: seconds until workers that were started for it gave a batch; None where they lived
            already.
        usual_wait_s: what a step waited in the median; None where that is not known.
        wait_cpu_s: of a step's wait in the mean, on a core of the training thread's; likewise.
    """

    setting: Setting
    window: Window
    error: float
    start_s: float | None = None
    usual_wait_s: float | None = None
    wait_cpu_s: float | None = None

    @property
    def workers(self) -> int:
        """The crew."""
        return self.setting.workers

    @property
    def steps_per_s(self) -> float:
        """How fast the training was."""
        return 1.0 / self.window.step_s

    @property
    def interval(self) -> tuple[float, float] | None:
        """Steps per second, from and to, with 95% confidence; None where nothing can be told."""
        if self.error >= 1:
            return None
        return self.steps_per_s / (1 + self.error), self.steps_per_s / (1 - self.error)
