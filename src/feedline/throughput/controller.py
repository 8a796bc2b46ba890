"""Online controller: windows of measurements in, decisions out.

It optimises the speed of the training, not of the loader: a change is evaluated by the step time
before and after it, and undone if it did not help.

If steps wait, it adds as many workers as the step's own time and a batch's work require, so that
one change suffices. If there are enough workers for that work and they are partly idle, batches
arrive unevenly: then it makes more of them ahead, or uses smaller tasks. If steps do not wait and
workers are mostly idle, it removes some after a while, but always leaves enough that the rest
is not busy all the time.

Guarantees: pure, no clock and no random number; the same windows give the same decisions. It
settles: a change that did not help at an image size is not tried again at that size, unless the
work or the step changes. A change is evaluated when the difference is larger than its error, or
after some windows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from feedline.throughput.decision import SettingChange, What
from feedline.throughput.limits import MAX_WORKERS, WorkerLimits
from feedline.throughput.setting_trial import Trial
from feedline.throughput.step_window import StepWindow, workers_for

__all__ = ["Controller"]

_WAITS = 0.03  # of the time, from which on something is to be changed
_CALM = 0.01  # up to which fewer may do
_SPARE = 1.1  # batches do not come evenly: so much more than the mean need is wanted,
_AMPLE = 1.3  # and so much is left when workers are given back
_NOISY = 0.2  # error of a step's time beyond which one window is not enough
_IDLE = 0.9  # of their time at work, below which more workers are not what is lacking
_PATIENCE = 3  # windows that must agree before something is changed that is not urgent
_MANY = 8  # windows that tell of batches that come unevenly,
_MOST = 32  # and as many as are looked at together
_ANOTHER = 1.5  # times: work, or a step, that differs by so much is another
_SHORTER = 4  # times: beyond a quarter the gain is 1.1 at most, by simulation
_LEAST_TASK_MS = 2.0  # of which the 0.2 ms for its message are a tenth


@dataclass(slots=True)
class _Known:
    """Knowledge about a phase.

    Args:
        work_s, own_s: of a batch and of a step, in the latest windows.
        low, high: numbers of workers below and above which steps were slower, or no faster.
        tried: changes already made against uneven batches.
        need: work over step time when these were found; 0 if there was none.
        other: consecutive windows whose need is far from that.
    """

    work_s: float
    own_s: float
    low: int = 1
    high: int | None = None
    tried: set[What] = field(default_factory=set)
    need: float = 0.0
    other: int = 0


class Controller:
    """Chooses a loader's workers, batches ahead and task size.

    Args:
        limits: limits to stay within; may be changed at any time.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self._known: dict[Hashable, _Known] = {}
        self._latest: deque[StepWindow] = deque(maxlen=_MOST)  # with nothing changed between them
        self._trial: Trial | None = None
        self._calm = 0

    def observe(self, window: StepWindow) -> SettingChange | None:
        """Evaluate a window since the last change. Return the next change, if any.

        Args:
            window: measured with the settings of the last decision.
        """
        latest = self._latest[-1] if self._latest else None
        if latest is not None and latest.phase != window.phase:
            self._trial = None
        if latest is None or (latest.phase, latest.settings) != (window.phase, window.settings):
            self._latest.clear()
            self._calm = 0
        self._latest.append(window)
        seen, recent = StepWindow.joined(self._latest), self._recent
        known = self._update_known(seen, recent)
        trial = self._trial
        if trial is not None and getattr(window, trial.decision.what) == trial.decision.after:
            if not trial.is_clear(seen) and not self._are_many:
                return None
            self._trial = None
            if back := self._end_trial(trial, seen, known):
                return back
        self._trial = None  # or someone else changed the setting
        return self._grow(window, seen, recent, known) or self._shrink(window, seen, known)

    def prepare(
        self, phase: Hashable, step_ratio: float, work_ratio: float
    ) -> SettingChange | None:
        """Prepare for the next phase, whose first batches are about to be made.

        Args:
            phase: key of the phase, as in its windows.
            step_ratio: expected compute time of its steps, relative to now,
            work_ratio: and expected work of its batches; both are used only for a new phase.
        """
        if not self._latest or phase == self._latest[-1].phase:
            return None
        window = self._latest[-1]
        now, known = self._known[window.phase], self._known.get(phase)
        work_s = known.work_s if known else now.work_s * work_ratio
        own_s = known.own_s if known else now.own_s * step_ratio
        most = self.limits.most(window.workers, window.blocked_share)
        if known and known.high is not None:
            most = min(most, known.high)
        wanted = min(most, workers_for(work_s, own_s, _SPARE))
        if wanted <= window.workers:
            return None
        self._trial = None
        self._latest.clear()
        return SettingChange(
            kind="prepare",
            before=window.workers,
            after=wanted,
            reason=(
                f"expecting steps of {own_s * 1e3:.3g} ms and batches of {work_s * 1e3:.3g} ms of "
                "work in the next phase"
            ),
        )

    @property
    def _are_many(self) -> bool:
        """True if there are enough windows to detect uneven batches."""
        return len(self._latest) >= _MANY

    @property
    def _recent(self) -> StepWindow:
        """Smallest number of recent windows that determine the step time."""
        windows = list(self._latest)[-_MANY:]
        for count in range(1, len(windows)):
            recent = StepWindow.joined(windows[-count:])
            if recent.error <= _NOISY:
                return recent
        return StepWindow.joined(windows)

    def _update_known(self, seen: StepWindow, recent: StepWindow) -> _Known:
        known = self._known.get(seen.phase)
        if known is None:
            known = self._known[seen.phase] = _Known(seen.work_s, seen.own_s)
        known.work_s, known.own_s = recent.work_s, recent.own_s
        if self._are_many:
            lately = StepWindow.joined(list(self._latest)[-_MANY:])
            need = min(MAX_WORKERS, lately.need)  # without a step, any limit does
            known.need = known.need or need
            far = not known.need / _ANOTHER < need < known.need * _ANOTHER
            known.other = known.other + 1 if far else 0
            if known.other >= _MANY:  # the work has changed since
                self._known[seen.phase] = known = _Known(recent.work_s, recent.own_s)
                self._trial = None  # and what was changed meanwhile cannot be evaluated
        return known

    def _end_trial(self, trial: Trial, seen: StepWindow, known: _Known) -> SettingChange | None:
        """Undo a change, or learn from it."""
        done = trial.decision
        lacked = done.kind == "grow" and trial.seen.wanted(_SPARE) > done.before
        stays = trial.gain(seen) >= 0 or (lacked and not trial.is_clear(seen))
        if done.what == "workers":
            before = int(done.before)
            if done.kind != "shrink":
                if stays:
                    known.low = max(known.low, before + 1)
                else:
                    known.high = before
            elif stays:
                known.high = max(before, known.low)
            else:
                known.low = before
        return None if stays else trial.back(seen)

    def _grow(
        self, window: StepWindow, seen: StepWindow, recent: StepWindow, known: _Known
    ) -> SettingChange | None:
        waits = [each.wait_share > _WAITS for each in self._latest]
        if not waits[-1]:
            return None
        most = self.limits.most(window.workers, window.blocked_share)
        if known.high is not None:
            most = min(most, known.high)
        wanted = recent.wanted(_SPARE)
        if wanted <= window.workers and recent.busy < _IDLE:
            enough = self._are_many and seen.wait_share > _WAITS
            uneven = self._even_out(seen, known, most) if enough else None
            return uneven and self._start_trial(uneven, seen)
        hasty = recent.error > _NOISY and len(self._latest) < _PATIENCE
        if hasty or not all(waits[-_PATIENCE:]) or window.workers >= most:
            return None
        reason = (
            f"steps wait for data {recent.wait_share:.0%} of the time: a batch takes "
            f"{recent.work_s * 1e3:.3g} ms of work, a step {recent.own_s * 1e3:.3g} ms"
        )
        after = min(most, max(window.workers + 1, wanted))
        grown = SettingChange(kind="grow", before=window.workers, after=after, reason=reason)
        return self._start_trial(grown, recent)

    def _even_out(self, seen: StepWindow, known: _Known, most: int) -> SettingChange | None:
        """Next untried change against uneven batches."""
        deepest = self.limits.deepest(seen.prefetch, seen.workers, seen.blocked_share)
        shorter = max(_LEAST_TASK_MS, round(seen.task_ms / _SHORTER, 3))
        options: tuple[tuple[What, float, float, bool], ...] = (
            ("prefetch", seen.prefetch, deepest, 0 < seen.prefetch < deepest),
            # Where a task is no longer than that, pieces are as long as they can be.
            ("task_ms", seen.task_ms, shorter, shorter < min(seen.task_ms, seen.task_s * 1e3)),
        )
        more = min(most, seen.workers + max(1, seen.workers // 2))
        options += (("workers", seen.workers, more, seen.workers < more),)
        for what, before, after, possible in options:
            if possible and what not in known.tried:
                reason = (
                    f"batches arrive unevenly: steps wait for data {seen.wait_share:.0%} of the "
                    f"time while workers are {seen.busy:.0%} busy"
                )
                return SettingChange(
                    kind="even", what=what, before=before, after=after, reason=reason
                )
        return None

    def _shrink(self, window: StepWindow, seen: StepWindow, known: _Known) -> SettingChange | None:
        most = self.limits.most(window.workers, window.blocked_share)
        before = window.workers
        if before > max(most, known.low):
            reason = f"{self.limits.cores} cores cannot keep more workers busy"
            after = max(most, known.low)
            shrunk = SettingChange(kind="shrink", before=before, after=after, reason=reason)
            return self._start_trial(shrunk, seen)
        wanted = max(known.low, seen.wanted(_AMPLE))
        fewer = window.tasks_s > 0 and window.wait_share < _CALM and wanted < before
        self._calm = self._calm + 1 if fewer else 0
        if self._calm < _PATIENCE:
            return None
        reason = (
            f"steps do not wait for data and workers are {seen.busy:.0%} busy: {wanted} are enough"
        )
        shrunk = SettingChange(kind="shrink", before=before, after=wanted, reason=reason)
        return self._start_trial(shrunk, seen)

    def _start_trial(self, decision: SettingChange, seen: StepWindow) -> SettingChange:
        self._trial, self._calm = Trial(decision, seen), 0
        if decision.kind == "even":
            self._known[seen.phase].tried.add(decision.what)
        return decision
