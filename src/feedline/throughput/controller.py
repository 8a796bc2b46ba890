"""Online controller: windows of measurements in, changes of settings out.

It optimises the speed of the training, not of the loader: a change is evaluated by the step time
before and after it, and undone if it did not help.

If steps wait, it adds as many workers as the step's own time and a batch's work require, so that
one change suffices. If there are enough workers for that work and they are partly idle, batches
arrive unevenly: then it makes more of them ahead, or uses smaller tasks. If steps do not wait and
workers are mostly idle, it removes some after a while, but always leaves enough that the rest
is not busy all the time.

Guarantees: pure, no clock and no random number; the same windows give the same changes. It
settles: a change that did not help at an image size is not tried again at that size, unless the
work or the step changes. A change is evaluated when the difference is larger than its error, or
after some windows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from feedline.throughput.step_model import (
    MAX_WORKERS,
    StepLoad,
    WorkerLimits,
    is_compute_bound,
    workers_needed,
)
from feedline.throughput.thresholds import THRESHOLDS
from feedline.throughput.windows import StepWindow

What = Literal["workers", "prefetch", "task_ms"]
"""`workers`: how many; `prefetch`: whole batches ahead; `task_ms`: work in a task of a batch."""

Kind = Literal["grow", "shrink", "even", "back", "prepare"]
"""`even`: against uneven batches; `back`: undo a change that did not help; `prepare`: for the next
phase."""

_TEXT: dict[What, tuple[str, str]] = {
    "workers": ("{:g} workers -> {:g}", "more workers"),
    "prefetch": ("{:g} batches ahead -> {:g}", "more batches ahead"),
    "task_ms": ("tasks of {:g} ms -> {:g} ms", "smaller tasks"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingChange:
    """A change of one setting."""

    kind: Kind
    what: What = "workers"
    before: float  # number of workers or of batches, or ms
    after: float
    reason: str  # with its figures

    def __str__(self) -> str:
        return f"{_TEXT[self.what][0].format(self.before, self.after)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class _Trial:
    """A change under evaluation, and the measurements that led to it."""

    change: SettingChange
    seen: StepWindow

    def gain(self, now: StepWindow) -> float:
        """Relative gain in step time beyond the required one."""
        if now.step_s <= 0:
            return 0.0
        required = -THRESHOLDS.alike
        if self.change.kind != "shrink":
            expected = self.seen.step_s / self.seen.own_s - 1 if self.seen.own_s > 0 else 1.0
            required = max(THRESHOLDS.alike, min(THRESHOLDS.noise, expected / 4))
        return self.seen.step_s / now.step_s - 1 - required

    def is_clear(self, now: StepWindow) -> bool:
        """Return True if the gain is larger than its error."""
        return abs(self.gain(now)) > math.hypot(self.seen.error, now.error)

    def undo(self, now: StepWindow) -> SettingChange:
        """Return the change back."""
        done = self.change
        failed = f"{_TEXT[done.what][1]} did not make steps faster"
        if done.kind == "shrink":
            failed = "steps were slower with fewer workers"
        times = f"{self.seen.step_s * 1e3:.3g} ms before, {now.step_s * 1e3:.3g} ms now"
        return SettingChange(
            kind="back",
            what=done.what,
            before=done.after,
            after=done.before,
            reason=f"{failed}: {times}",
        )


@dataclass(slots=True)
class _Known:
    """Knowledge about a phase."""

    load: StepLoad  # of a step, in the latest windows
    low: int = 1  # number of workers below which steps were slower
    high: int | None = None  # number above which they were no faster
    tried: set[What] = field(default_factory=set)  # changes made against uneven batches
    need: float = 0.0  # of workers when these were found; 0 if there was none
    other: int = 0  # consecutive windows whose need is far from that


class Controller:
    """Chooses a loader's workers, batches ahead and task size, within limits that may change."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self._known: dict[Hashable, _Known] = {}
        # Windows with nothing changed between them.
        self._latest: deque[StepWindow] = deque(maxlen=THRESHOLDS.max_windows)
        self._trial: _Trial | None = None
        self._calm = 0

    def observe(self, window: StepWindow) -> SettingChange | None:
        """Evaluate a window, measured with the latest settings. Return the next change, if any."""
        if self._latest and _key(self._latest[-1]) != _key(window):
            if self._latest[-1].phase != window.phase:
                self._trial = None
            self._latest.clear()
            self._calm = 0
        self._latest.append(window)
        seen, recent = StepWindow.joined(self._latest), self._recent
        known = self._update_known(seen, recent)
        trial, self._trial = self._trial, None
        # Without a match, someone else changed the setting.
        if trial is not None and getattr(window, trial.change.what) == trial.change.after:
            if not trial.is_clear(seen) and not self._are_many:
                self._trial = trial
                return None
            if undone := self._end_trial(trial, seen, known):
                return undone
        return self._grow(window, seen, recent, known) or self._shrink(window, seen, known)

    def prepare(
        self, phase: Hashable, step_ratio: float, work_ratio: float
    ) -> SettingChange | None:
        """Prepare for the next phase, whose first batches are about to be made.

        The ratios are the expected compute time of its steps and work of its batches, relative to
        now; they are used only for a new phase.
        """
        if not self._latest or phase == self._latest[-1].phase:
            return None
        window = self._latest[-1]
        now, known = self._known[window.phase].load, self._known.get(phase)
        load = known.load if known else now.scaled(compute=step_ratio, work=work_ratio)
        wanted = min(self._most(window, known), _wanted(load, THRESHOLDS.spare))
        if wanted <= window.workers:
            return None
        self._trial = None
        self._latest.clear()
        return SettingChange(
            kind="prepare",
            before=window.workers,
            after=wanted,
            reason=(
                f"expecting steps of {load.compute_ms:.3g} ms and batches of {load.work_ms:.3g} ms "
                "of work in the next phase"
            ),
        )

    @property
    def _are_many(self) -> bool:
        """True if there are enough windows to detect uneven batches."""
        return len(self._latest) >= THRESHOLDS.many_windows

    def _last(self, count: int) -> StepWindow:
        return StepWindow.joined(list(self._latest)[-count:])

    @property
    def _recent(self) -> StepWindow:
        """Smallest number of recent windows that determine the step time."""
        recent = self._last(1)
        for count in range(2, min(len(self._latest), THRESHOLDS.many_windows) + 1):
            if recent.error > THRESHOLDS.window_error:
                recent = self._last(count)
        return recent

    def _most(self, window: StepWindow, known: _Known | None) -> int:
        """Maximum number of workers, from resources and from what is known about a phase."""
        most = self.limits.most(window.blocked_share)
        return most if known is None or known.high is None else min(most, known.high)

    def _update_known(self, seen: StepWindow, recent: StepWindow) -> _Known:
        load = recent.load()
        known = self._known.setdefault(seen.phase, _Known(load))
        known.load = load
        if self._are_many:
            need = min(MAX_WORKERS, self._last(THRESHOLDS.many_windows).load().need)
            known.need = known.need or need
            ratio = THRESHOLDS.other_work
            far = not known.need / ratio < need < known.need * ratio
            known.other = known.other + 1 if far else 0
            if known.other >= THRESHOLDS.many_windows:  # the work has changed since
                self._known[seen.phase] = known = _Known(load)
                self._trial = None  # and what was changed meanwhile cannot be evaluated
        return known

    def _end_trial(self, trial: _Trial, seen: StepWindow, known: _Known) -> SettingChange | None:
        """Undo a change, or learn from it."""
        done, before = trial.change, int(trial.change.before)
        lacked = done.kind == "grow" and _wanted(trial.seen.load(), THRESHOLDS.spare) > before
        stays = trial.gain(seen) >= 0 or (lacked and not trial.is_clear(seen))
        if done.what == "workers":
            if done.kind != "shrink":
                if stays:
                    known.low = max(known.low, before + 1)
                else:
                    known.high = before
            elif stays:
                known.high = max(before, known.low)
            else:
                known.low = before
        return None if stays else trial.undo(seen)

    def _grow(
        self, window: StepWindow, seen: StepWindow, recent: StepWindow, known: _Known
    ) -> SettingChange | None:
        waits = [not is_compute_bound(each.wait_share) for each in self._latest]
        if not waits[-1]:
            return None
        most = self._most(window, known)
        wanted = _wanted(recent.load(), THRESHOLDS.spare)
        if wanted <= window.workers and recent.busy < THRESHOLDS.busy:
            if not self._are_many or is_compute_bound(seen.wait_share):
                return None
            return self._even_out(seen, known, most)
        patience = THRESHOLDS.patience
        hasty = recent.error > THRESHOLDS.window_error and len(self._latest) < patience
        if hasty or not all(waits[-patience:]) or window.workers >= most:
            return None
        reason = (
            f"steps wait for data {recent.wait_share:.0%} of the time: a batch takes "
            f"{recent.work_s * 1e3:.3g} ms of work, a step {recent.own_s * 1e3:.3g} ms"
        )
        after = min(most, max(window.workers + 1, wanted))
        return self._start_trial("grow", recent, "workers", after, reason)

    def _even_out(self, seen: StepWindow, known: _Known, most: int) -> SettingChange | None:
        """Next untried change against uneven batches."""
        deepest = self.limits.deepest(seen.prefetch, seen.blocked_share)
        shorter = max(THRESHOLDS.min_task_ms, round(seen.task_ms / THRESHOLDS.shorter_tasks, 3))
        mean_ms = seen.tasks_s * 1e3 / seen.tasks if seen.tasks else 0.0
        more = min(most, seen.workers + max(1, seen.workers // 2))
        options: tuple[tuple[What, float, bool], ...] = (
            ("prefetch", deepest, 0 < seen.prefetch < deepest),
            # If a task is no longer than that, tasks have as few rows as they can.
            ("task_ms", shorter, shorter < min(seen.task_ms, mean_ms)),
            ("workers", more, seen.workers < more),
        )
        for what, after, possible in options:
            if possible and what not in known.tried:
                known.tried.add(what)
                waits = f"steps wait for data {seen.wait_share:.0%} of the time"
                reason = f"batches arrive unevenly: {waits} while workers are {seen.busy:.0%} busy"
                return self._start_trial("even", seen, what, after, reason)
        return None

    def _shrink(self, window: StepWindow, seen: StepWindow, known: _Known) -> SettingChange | None:
        most = self.limits.most(window.blocked_share)
        before = window.workers
        if before > (after := max(most, known.low)):
            reason = f"{self.limits.cores} cores cannot keep more workers busy"
        else:
            after = max(known.low, _wanted(seen.load(), THRESHOLDS.ample))
            fewer = window.tasks_s > 0 and window.wait_share < THRESHOLDS.calm and after < before
            self._calm = self._calm + 1 if fewer else 0
            if self._calm < THRESHOLDS.patience:
                return None
            busy = f"workers are {seen.busy:.0%} busy"
            reason = f"steps do not wait for data and {busy}: {after} are enough"
        return self._start_trial("shrink", seen, "workers", after, reason)

    def _start_trial(
        self, kind: Kind, seen: StepWindow, what: What, after: float, reason: str
    ) -> SettingChange:
        before = getattr(seen, what)
        change = SettingChange(kind=kind, what=what, before=before, after=after, reason=reason)
        self._trial, self._calm = _Trial(change, seen), 0
        return change


def _key(window: StepWindow) -> tuple[object, ...]:
    """Phase and settings of a window."""
    return window.phase, window.workers, window.prefetch, window.task_ms


def _wanted(load: StepLoad, spare: float) -> int:
    """Number of workers for a load; more than possible if no number suffices."""
    return workers_needed(load, spare) or MAX_WORKERS
