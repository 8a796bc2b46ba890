"""Windows and phases as if they had been measured."""

from __future__ import annotations

from typing import Any

from feedline.throughput.step_model import StepLoad
from feedline.throughput.what_if import Rates
from feedline.throughput.windows import PoolRate, StepWindow


def a_window(**changes: Any) -> StepWindow:
    """Whole batches that come unevenly: four workers, at work half of the time."""
    usual: dict[str, Any] = {
        "phase": "a",
        "steps": 20,
        "seconds": 2.0,
        "wait_s": 0.5,
        "tasks_s": 4.0,
        "on_core": 1.0,
        "queued": 0.0,
        "workers": 4,
        "tasks": 20,
        "prefetch": 8,
    }
    return StepWindow(**(usual | changes))


def load(**given: Any) -> StepLoad:
    """A step of 10 ms over batches of 40 ms of work by two workers on four cores."""
    usual: dict[str, Any] = {
        "workers": 2,
        "cores": 4.0,
        "compute_ms": 10.0,
        "step_cpu_ms": 0.0,
        "hand_ms": 0.0,
        "hand_cpu_ms": 0.0,
        "work_cpu_ms": 40.0,
        "work_blocked_ms": 0.0,
        "beside_cpu_ms": 0.0,
    }
    return StepLoad(**(usual | given))


def point(stretch: float = 1.0, **given: Any) -> PoolRate:
    """A number of workers whose steps take a multiple of the model's time."""
    needed = load(**given)
    return PoolRate(load=needed, step_ms=needed.step_ms * stretch, error=0.0)


def rates(size: int | None = 224, *points: PoolRate, **given: Any) -> Rates:
    """A phase of batches of 32 images."""
    usual: dict[str, Any] = {"rows": 32.0}
    return Rates(size=size, points=points or (point(),), **(usual | given))
