"""A change of a loader's settings, with its reason, as it is logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "SettingChange", "What"]

What = Literal["workers", "prefetch", "task_ms"]
"""`workers`: how many; `prefetch`: whole batches ahead; `task_ms`: work in a piece of a batch."""

Kind = Literal["grow", "shrink", "even", "back", "prepare"]
"""`even`: against uneven batches; `back`: undo a change that did not help; `prepare`: for the next
phase."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingChange:
    """A change of one setting.

    Args:
        kind: kind of change.
        what: setting that changes.
        before: previous value: a number of workers or of batches, or ms.
        after: new value.
        reason: reason as text, with its figures.
    """

    kind: Kind
    what: What = "workers"
    before: float
    after: float
    reason: str

    def __str__(self) -> str:
        return f"{_SAID[self.what].format(self.before, self.after)}: {self.reason}"


_SAID: dict[What, str] = {
    "workers": "{:g} workers -> {:g}",
    "prefetch": "{:g} batches ahead -> {:g}",
    "task_ms": "tasks of {:g} ms -> {:g} ms",
}
