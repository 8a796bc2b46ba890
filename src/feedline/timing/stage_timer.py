"""Stage timer: code that makes samples records the time of its stages.

A stage calls `end_stage("decode")` when its part of a sample is done: the time since the previous
call is that stage's. The code that runs a task calls `begin_task(page)` before and `end_task()`
after it, and `end_sample(number)` after each sample if `each_sample`. Some tasks are timed stage by
stage, the others only as a whole, and sample by sample unless samples are tiny. Code that runs for
every row checks the flag first, as in `if stage_timer.timed: stage_timer.end_stage("decode")`: the
check costs a few ns, a call 500, and one at the end of a long stage a system call more.

Guarantees: the samples are not changed; outside of a task nothing is recorded. A thread started by
a sample's code records nothing.
Relies on: one thread of a process running tasks at a time; tasks of another thread are not
recorded.
"""

from __future__ import annotations

import operator
import os
import threading
import time
from pathlib import Path
from typing import Any

from feedline.timing.stage_page import StagePage

_EVERY, _EVERY_QUICK = 8, 64
"""One of eight tasks of a worker is timed stage by stage, but none of the first, which warm up. If
samples are quick, this holds for the first tasks only, later for one of 64: timing the stages of a
sample takes about 20 us. If tasks and samples take long, a few seconds might contain none of these:
all tasks but the first are timed."""

_FIRST, _GOLDEN = 3, (5**0.5 - 1) / 2
"""Place of the timed task among eight: first the fourth, and the distance to that among the next
eight, as a share. So of data that is slow every few tasks, as many slow ones are timed as of
others."""

_QUICK_NS = 500_000
_QUICK_TASKS, _QUICK_SAMPLES = 64, 128
"""Tasks, or samples of timed tasks, after which fewer tasks are timed if samples are quick."""

_LONG_TASK_NS = 100_000_000

_SHORT_NS = 100_000
"""A stage that takes less is counted as on a core: asking the kernel for its time on a core costs 1
to 40 us, more than most steps of a transform of tiny images."""

_NOT_TINY_NS = 50_000
_LONG_NS = 1_000_000  # of a sample: asking the kernel for its time without a core costs 5 us
_NEVER = 1 << 62  # nothing is slower
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class StageTimer:
    """Timer of the task that this process runs."""

    __slots__ = (
        *("each_sample", "timed", "clock", "schedstat", "_page", "_thread", "_slow_ns"),
        *("_begun_ns", "_begun_cpu_ns", "_begun_queued_ns", "_lap_ns", "_lap_cpu_ns"),
        *("_sample_ns", "_sample_queued_ns"),
    )

    def __init__(self) -> None:
        self.clock = time.monotonic_ns
        self.schedstat = _SCHEDSTAT
        self._thread = self._begun_ns = self._begun_cpu_ns = 0
        self._lap_ns = self._lap_cpu_ns = self._sample_ns = 0
        self._begun_queued_ns: int | None = None
        self._sample_queued_ns: int | None = None
        self._forget()

    def _forget(self) -> None:
        self.each_sample = False
        """True if `end_sample` should be called in the current task: it is timed stage by stage, or
        samples take so long that the cost is negligible. Read-only for callers."""
        self.timed = False
        """True if the current task, if any, is timed stage by stage. Read-only for callers."""
        self._page: StagePage | None = None
        self._slow_ns = _NEVER

    def is_timing(self) -> bool:
        """Return True if this thread runs a task that is timed stage by stage."""
        return self.timed and threading.get_ident() == self._thread

    def end_stage(self, stage: str) -> None:
        """End the stage that began with the previous stage's end, or with its task."""
        if self.timed and self._page is not None and threading.get_ident() == self._thread:
            now_ns = self.clock()
            ns = now_ns - self._lap_ns
            cpu_ns = ns if ns < _SHORT_NS else max(0, time.thread_time_ns() - self._lap_cpu_ns)
            self._page.note(stage, ns, cpu_ns)
            self._lap_ns, self._lap_cpu_ns = now_ns, self._lap_cpu_ns + cpu_ns

    def begin_samples(self, stage: str) -> None:
        """End the preparation of a task's samples, which is a stage and not part of the first."""
        if self._page is not None and threading.get_ident() == self._thread:
            self.end_stage(stage)
            self._sample_ns = self.clock()
            if self.timed:
                self._sample_queued_ns = self._queued_ns()

    def note_decoded(self, height: int, width: int) -> None:
        """Record the decoding of an image, or of a part of it, in pixels."""
        if self.is_timing() and self._page is not None:
            self._page.note_decoded(min(height, width))

    def end_sample(self, key: Any, stage: str = "") -> None:
        """End a sample, which began with the previous sample's end, `begin_samples`, or its task.

        Only numbers are recorded as keys. `stage` is ended first, as by `end_stage`.
        """
        now_ns = self.clock()
        sample_ns, self._sample_ns = now_ns - self._sample_ns, now_ns
        if self.timed or sample_ns > self._slow_ns:
            if stage:
                self.end_stage(stage)
            self.note_sample(key, sample_ns)

    def note_sample(self, key: Any, ns: int) -> int:
        """Record the duration of a sample that the caller has timed.

        Returns the duration from which on samples that are not `timed` should be recorded.
        """
        page = self._page
        if page is not None and threading.get_ident() == self._thread:
            if self.timed and ns > _LONG_NS:
                # Time without a core is not the sample's own.
                queued_ns = self._queued_ns()
                if queued_ns is not None and self._sample_queued_ns is not None:
                    ns = max(0, ns - (queued_ns - self._sample_queued_ns))
                self._sample_queued_ns = queued_ns
            if ns > self._slow_ns:
                page.keep(_number(key), ns)
                self._slow_ns = page.slow_ns
            if self.timed:
                page.sample(ns)
        return self._slow_ns

    def begin_task(self, page: StagePage | None) -> bool:
        """Begin a task that is recorded in `page`; None records nothing.

        Tasks do not nest: a task within another is a part of it. Returns True if `end_task` must be
        called, however the task ends.
        """
        if page is None or self._page is not None:
            return False
        self._page, self._slow_ns = page, page.slow_ns
        tasks, tiny = page.tasks, page.sample_ns <= _NOT_TINY_NS
        is_enough = tasks >= _QUICK_TASKS or page.timed_samples >= _QUICK_SAMPLES
        every = _EVERY_QUICK if is_enough and page.own_sample_ns <= _QUICK_NS else _EVERY
        long = page.tasks_ns >= max(1, tasks) * _LONG_TASK_NS and page.sample_ns >= _LONG_NS
        place = _FIRST + int(every * (tasks // every * _GOLDEN % 1.0))
        self.timed = long or tasks % every == place % every
        self.each_sample = self.timed or not tiny
        self._thread = threading.get_ident()
        if self.timed:
            self._begun_queued_ns = self._sample_queued_ns = self._queued_ns()
            self._begun_cpu_ns = self._lap_cpu_ns = time.thread_time_ns()
        self._begun_ns = self._lap_ns = self._sample_ns = self.clock()
        return True

    def end_task(self) -> None:
        """End the task that `begin_task` began."""
        page, self._page, self.each_sample = self._page, None, False
        if page is not None:
            done_ns = self.clock()
            page.task(self._begun_ns, done_ns)
            if self.timed:
                cpu_ns, queued_ns = time.thread_time_ns() - self._begun_cpu_ns, self._queued_ns()
                if queued_ns is not None and self._begun_queued_ns is not None:
                    queued_ns -= self._begun_queued_ns
                page.add_task_time(done_ns - self._begun_ns, cpu_ns, queued_ns)
        self._forget()

    def drop_task(self, page: StagePage | None) -> None:
        """Discard a task of this page that Ctrl-C interrupted."""
        if page is not None and self._page is page:
            self._forget()

    def _queued_ns(self) -> int | None:
        """Time that this thread was ready without a free core; asking the kernel takes 15 us."""
        try:
            return int(self.schedstat.read_bytes().split()[1])
        except (OSError, ValueError, IndexError):
            return None


def _number(key: Any) -> int:
    """Number of a sample that a page can store; -1 for any other key."""
    try:
        number = operator.index(key)
    except Exception:  # a custom class may raise anything
        return -1
    return number if 0 <= number < 1 << 63 else -1


stage_timer = StageTimer()
end_stage, is_timing = stage_timer.end_stage, stage_timer.is_timing
note_decoded = stage_timer.note_decoded

if hasattr(os, "register_at_fork"):
    # The parent's task is not the child's.
    os.register_at_fork(after_in_child=stage_timer._forget)
