"""A change that is to be judged, by the time of a step before and after it.

Guarantees: pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from feedline.control.decision import Decision, What
from feedline.control.window import Window

__all__ = ["Trial"]

_WORTH = 0.02  # a change of a step's time that counts,
_SURE = 0.05  # and that is hardly noise: so much is asked where far more was expected

_IN_VAIN: dict[What, str] = {
    "workers": "more workers",
    "prefetch": "more batches ahead",
    "piece_ms": "smaller pieces",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What was changed, and what was seen before.

    Args:
        decision: that was taken.
        seen: that it follows from.
    """

    decision: Decision
    seen: Window

    @property
    def worth(self) -> float:
        """By how much steps must be faster for the change to stay."""
        if self.decision.kind == "shrink":
            return -_WORTH
        expected = self.seen.step_s / self.seen.own_s - 1 if self.seen.own_s > 0 else 1.0
        return max(_WORTH, min(_SURE, expected / 4))

    def gain(self, now: Window) -> float:
        """By how much steps are faster than they have to be."""
        return self.seen.step_s / now.step_s - 1 - self.worth if now.step_s > 0 else 0.0

    def is_clear(self, now: Window) -> bool:
        """Whether that is more than chance."""
        return abs(self.gain(now)) > math.hypot(self.seen.error, now.error)

    def back(self, now: Window) -> Decision:
        """Take the change back."""
        done = self.decision
        said = f"{_IN_VAIN[done.what]} did not make steps faster"
        if done.kind == "shrink":
            said = "with fewer workers steps were slower"
        return Decision(
            kind="back",
            what=done.what,
            before=done.after,
            after=done.before,
            reason=f"{said}: {self.seen.step_s * 1e3:.3g} ms before, {now.step_s * 1e3:.3g} ms now",
        )
