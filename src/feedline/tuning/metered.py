"""A training step with a meter: what it takes of the cores.

Relies on: no other thread of the process that works beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

__all__ = ["Metered"]


class Metered:
    """A step that notes how long it is on cores, all threads together.

    Args:
        step: is done with each batch.
    """

    def __init__(self, step: Callable[[Any], object]) -> None:
        self._step = step
        self._steps = self._cpu_ns = 0
        self._raised: Exception | None = None

    def __call__(self, batch: Any) -> None:
        """Do it."""
        begun_ns = time.process_time_ns()
        try:
            self._step(batch)
        except Exception as error:
            self._raised = error
            raise
        self._cpu_ns += time.process_time_ns() - begun_ns
        self._steps += 1

    def raised(self, error: Exception) -> Literal["the step", "loading a batch"]:
        """What raised an exception: this step, or what gave its batches."""
        return "the step" if error is self._raised else "loading a batch"

    @property
    def cpu_s(self) -> float:
        """A step, in the mean."""
        return self._cpu_ns / 1e9 / max(1, self._steps)
