"""How many workers a training needs, from what is seen of it: windows in, decisions out.

The aim is the speed of the training, not of the loader: a change is judged by the time of a step
before and after it, and taken back where it did not do what it was to do.

Steps that wait ask for more workers: at once for as many as a step's own time and a batch's work
call for, so that one change does. Steps that do not wait, with workers that are idle most of the
time, give some back, after a while, and never so many that the rest would be busy all the time.

Guarantees: pure, no clock and no random number; the same windows give the same decisions. It
settles: what was tried at an image size and did not help is not tried again at that size, unless
the work or the step becomes another.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

from feedline.control.decision import Decision, Kind
from feedline.control.limits import Limits
from feedline.control.window import Window

__all__ = ["Controller"]

_WAITS = 0.03  # of the time, from which on more workers are wanted
_CALM = 0.01  # up to which fewer may do
_WORTH = 0.02  # a change of a step's time that counts,
_SURE = 0.05  # and that is hardly noise: so much is asked where far more was expected
_SPARE = 1.1  # batches do not come evenly: so much more than the mean need is wanted,
_AMPLE = 1.3  # and so much is left when workers are given back
_PATIENCE = 3  # windows that must agree before workers are given back
_ANOTHER = 1.5  # times: work, or a step, that differs by so much is another


@dataclass(slots=True)
class _Known:
    """What was learnt of a phase.

    Args:
        work_s, own_s: of a batch and of a step, in the latest window.
        low, high: workers below and above which it was worse, or no better.
        need: work over step when these were found; 0 where none was.
        other: windows, one after another, whose need is far from that.
    """

    work_s: float
    own_s: float
    low: int = 1
    high: int | None = None
    need: float = 0.0
    other: int = 0


@dataclass(frozen=True, slots=True)
class _Trial:
    """A change that is to be judged.

    Args:
        kind: of change.
        before: how many workers there were,
        step_s: and how long a step took,
        own_s: of which it did not wait.
    """

    kind: Kind
    before: int
    step_s: float
    own_s: float

    @property
    def worth(self) -> float:
        """By how much steps must be faster with more workers, for these to stay."""
        expected = self.step_s / self.own_s - 1 if self.own_s > 0 else 1.0
        return max(_WORTH, min(_SURE, expected / 4))


class Controller:
    """Decides on a crew of workers.

    Args:
        limits: that it keeps to; may be set anew at any time.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._phase: Hashable = None
        self._known: dict[Hashable, _Known] = {}
        self._trial: _Trial | None = None
        self._calm = 0

    def observe(self, window: Window) -> Decision | None:
        """Take in what was seen since the last change; what is to be changed, if anything.

        Args:
            window: with the crew at work that was decided on last.
        """
        if window.phase != self._phase:
            self._phase, self._trial, self._calm = window.phase, None, 0
        known = self._learnt(window)
        trial, self._trial = self._trial, None
        if trial is not None and (back := self._judged(trial, window, known)):
            return back
        return self._grown(window, known) or self._shrunk(window, known)

    def prepare(self, phase: Hashable, step_ratio: float, work_ratio: float) -> Decision | None:
        """Get ready for the phase that comes next, whose first batches are about to be made.

        Args:
            phase: as windows of it will say.
            step_ratio: how many times as long as now its steps are expected to compute,
            work_ratio: and its batches to be made; both count only where it was not seen before.
        """
        now = self._known.get(self._phase)
        if now is None or phase == self._phase:
            return None
        workers = self._workers
        known = self._known.get(phase)
        work_s = known.work_s if known else now.work_s * work_ratio
        own_s = known.own_s if known else now.own_s * step_ratio
        most = self.limits.most(workers, self._blocked)
        if known and known.high is not None:
            most = min(most, known.high)
        wanted = min(most, _wanted(work_s, own_s, _SPARE))
        if wanted <= workers:
            return None
        self._trial = None
        self._workers = wanted
        return Decision(
            kind="prepare",
            workers=wanted,
            before=workers,
            reason=f"the next phase's steps are expected to take {own_s * 1e3:.3g} ms, and its "
            f"batches {work_s * 1e3:.3g} ms of work",
        )

    _workers = 0
    _blocked = 0.0

    def _learnt(self, window: Window) -> _Known:
        self._workers, self._blocked = window.workers, window.blocked_share
        known = self._known.get(window.phase)
        if known is None:
            known = self._known[window.phase] = _Known(window.work_s, window.own_s)
        known.work_s, known.own_s = window.work_s, window.own_s
        need = _need(window.work_s, window.own_s)
        if known.need:
            far = not known.need / _ANOTHER < need < known.need * _ANOTHER
            known.other = known.other + 1 if far else 0
            if known.other >= _PATIENCE:  # what was found was of other work
                known.low, known.high, known.need, known.other = 1, None, 0.0, 0
        return known

    def _judged(self, trial: _Trial, window: Window, known: _Known) -> Decision | None:
        """Take a change back, or learn from it."""
        faster = trial.step_s / window.step_s if window.step_s > 0 else 1.0
        known.need = known.need or _need(window.work_s, window.own_s)
        if trial.kind == "grow":
            if faster >= 1 + trial.worth:
                known.low = max(known.low, trial.before + 1)
                return None
            known.high = trial.before
            said = "more workers did not make steps faster"
        else:
            if faster >= 1 - _WORTH:
                known.high = max(trial.before, known.low)
                return None
            known.low = trial.before
            said = "with fewer workers steps were slower"
        return Decision(
            kind="back",
            workers=trial.before,
            before=window.workers,
            reason=f"{said}: {trial.step_s * 1e3:.3g} ms before, {window.step_s * 1e3:.3g} ms now",
        )

    def _grown(self, window: Window, known: _Known) -> Decision | None:
        most = self.limits.most(window.workers, window.blocked_share)
        if known.high is not None:
            most = min(most, known.high)
        if window.wait_share <= _WAITS or window.workers >= most:
            return None
        wanted = _wanted(window.work_s, window.own_s, _SPARE)
        wanted = min(most, max(window.workers + 1, wanted))
        reason = (
            f"steps wait {window.wait_share:.0%} of the time: a batch takes "
            f"{window.work_s * 1e3:.3g} ms of work, and a step {window.own_s * 1e3:.3g} ms"
        )
        return self._change("grow", window, wanted, reason)

    def _shrunk(self, window: Window, known: _Known) -> Decision | None:
        most = self.limits.most(window.workers, window.blocked_share)
        if window.workers > max(most, known.low):
            reason = f"there are more workers than {self.limits.cores} cores can keep busy"
            return self._change("shrink", window, max(most, known.low), reason)
        wanted = max(known.low, _wanted(window.work_s, window.own_s, _AMPLE))
        fewer = window.tasks_s > 0 and window.wait_share < _CALM and wanted < window.workers
        self._calm = self._calm + 1 if fewer else 0
        if self._calm < _PATIENCE:
            return None
        reason = (
            f"steps do not wait, and workers are at work {window.busy:.0%} of the time: {wanted} "
            "are enough"
        )
        return self._change("shrink", window, wanted, reason)

    def _change(self, kind: Kind, window: Window, workers: int, reason: str) -> Decision:
        self._trial, self._calm = _Trial(kind, window.workers, window.step_s, window.own_s), 0
        return Decision(kind=kind, workers=workers, before=window.workers, reason=reason)


def _need(work_s: float, own_s: float) -> float:
    """Workers that are busy all the time where steps never wait."""
    return work_s / own_s if own_s > 0 else math.inf


def _wanted(work_s: float, own_s: float, spare: float) -> int:
    need = _need(work_s, own_s) * spare
    return max(1, math.ceil(need)) if math.isfinite(need) else 1 << 30
