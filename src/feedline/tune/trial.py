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
        error: half of the 95% interval of a step's mean time, as a share of it.
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
    def interval(self) -> tuple[float, float]:
        """Steps per second, from and to, with 95% confidence."""
        return self.steps_per_s / (1 + self.error), self.steps_per_s / max(1e-9, 1 - self.error)
