"""A change under evaluation, by the step time before and after it.

Guarantees: pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from feedline.throughput.decision import SettingChange, What
from feedline.throughput.step_window import StepWindow

__all__ = ["Trial"]

_WORTH = 0.02  # a change of a step's time that counts,
_SURE = 0.05  # and that is hardly noise: so much is asked where far more was expected

_IN_VAIN: dict[What, str] = {
    "workers": "more workers",
    "prefetch": "more batches ahead",
    "task_ms": "smaller tasks",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """A change and the measurements before it.

    Args:
        decision: the change.
        seen: measurements that led to it.
    """

    decision: SettingChange
    seen: StepWindow

    @property
    def worth(self) -> float:
        """Required relative gain in step time for the change to stay."""
        if self.decision.kind == "shrink":
            return -_WORTH
        expected = self.seen.step_s / self.seen.own_s - 1 if self.seen.own_s > 0 else 1.0
        return max(_WORTH, min(_SURE, expected / 4))

    def gain(self, now: StepWindow) -> float:
        """Relative gain in step time beyond the required one."""
        return self.seen.step_s / now.step_s - 1 - self.worth if now.step_s > 0 else 0.0

    def is_clear(self, now: StepWindow) -> bool:
        """Return True if the gain is larger than its error."""
        return abs(self.gain(now)) > math.hypot(self.seen.error, now.error)

    def back(self, now: StepWindow) -> SettingChange:
        """Return the decision that undoes the change."""
        done = self.decision
        said = f"{_IN_VAIN[done.what]} did not make steps faster"
        if done.kind == "shrink":
            said = "steps were slower with fewer workers"
        return SettingChange(
            kind="back",
            what=done.what,
            before=done.after,
            after=done.before,
            reason=f"{said}: {self.seen.step_s * 1e3:.3g} ms before, {now.step_s * 1e3:.3g} ms now",
        )
