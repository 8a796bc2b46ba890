"""What a training gave with one crew for a while."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.control.window import Window

__all__ = ["Trial"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Some steps with one crew.

    Args:
        window: what was seen of them.
        error: half of the 95% interval of a step's mean time, as a share of it; 1 where there were
            too few steps to tell.
    """

    window: Window
    error: float

    @property
    def workers(self) -> int:
        """The crew."""
        return self.window.workers

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
