"""A loader setting, and the measurement of it."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.throughput.step_window import StepWindow

__all__ = ["LoaderSetting", "LoaderTrial"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderSetting:
    """Loader settings that affect speed but not the contents of batches.

    Args:
        workers: number of processes, at least 1.
        prefetch: prefetched batches: of all workers together for image rows, else of each worker,
            as torch's `prefetch_factor`.
        task_ms: duration of a task in milliseconds; None if tasks are whole batches.
        pin: page-locked memory for batches; None if it is not tried.
    """

    workers: int
    prefetch: int
    task_ms: float | None = None
    pin: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderTrial:
    """Measured steps with one setting.

    Args:
        setting: settings of the loader.
        window: times of the steps.
        error: half of the 95% interval of the mean step time, relative to the mean; 1 if there were
            too few steps.
        start_s: seconds until newly started workers returned a batch; None if they ran before.
        usual_wait_s: median data wait of a step; None if unknown.
        wait_cpu_s: mean CPU time of the training thread in a step's data wait; None if unknown.
    """

    setting: LoaderSetting
    window: StepWindow
    error: float
    start_s: float | None = None
    usual_wait_s: float | None = None
    wait_cpu_s: float | None = None

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.setting.workers

    @property
    def steps_per_s(self) -> float:
        """Rate of the training."""
        return 1.0 / self.window.step_s

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of `steps_per_s`; None with too few steps."""
        if self.error >= 1:
            return None
        return self.steps_per_s / (1 + self.error), self.steps_per_s / (1 - self.error)
