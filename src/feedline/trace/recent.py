"""The latest steps of a run, and how many there have been."""

from __future__ import annotations

from collections import deque

__all__ = ["Recent", "Step"]

Step = tuple[float, "float | None", float]
"""Of a step, in ms: wait, copy, compute."""


class Recent(deque[Step]):
    """The latest 1024 steps, oldest first."""

    def __init__(self) -> None:
        super().__init__(maxlen=1024)
        self.steps = 0
        """All that were ever added by `step`."""

    def step(self, steps: list[Step]) -> None:
        """Some more."""
        self.steps += len(steps)
        self.extend(steps)
