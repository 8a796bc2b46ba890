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

__all__ = [
    "begin_samples",
    "begin_task",
    "drop_task",
    "end_sample",
    "end_stage",
    "end_task",
    "is_timing",
    "note_decoded",
    "note_sample",
]

_EVERY, _EVERY_QUICK = 8, 64
"""Every eighth task of a worker is timed stage by stage, first the fourth, as earlier ones warm up.
If samples are quick, this holds for the first tasks only, later for every 64th: timing the stages
of a sample takes about 20 us. If tasks and samples take long, a few seconds might contain none of
these: all tasks but the first are timed."""

_QUICK_NS = 500_000
_QUICK_TASKS, _QUICK_SAMPLES = 64, 128
"""Tasks, or samples of timed tasks, after which fewer tasks are timed if samples are quick."""

_LONG_TASK_NS = 100_000_000

_SHORT_NS = 100_000
"""A stage that takes less is counted as on a core: asking the kernel for its time on a core costs 1
to 40 us, more than most steps of a transform of tiny images."""

each_sample = False
"""True if `end_sample` should be called in the current task. Read-only for callers.

That is if the task is timed stage by stage, or samples take so long that the cost is negligible."""

timed = False
"""True if the current task, if any, is timed stage by stage. Read-only for callers."""

_NOT_TINY_NS = 50_000

_page: StagePage | None = None
_slow_ns = 1 << 62  # nothing is slower
_thread = 0
_begun_ns = 0
_begun_cpu_ns = 0
_begun_queued_ns: int | None = None
_lap_ns = 0
_lap_cpu_ns = 0
_sample_ns = 0
_sample_queued_ns: int | None = None
_LONG_NS = 1_000_000  # of a sample: asking the kernel for its time without a core costs 5 us
_clock = time.monotonic_ns


def is_timing() -> bool:
    """Return True if this thread runs a task that is timed stage by stage."""
    return timed and threading.get_ident() == _thread


def end_stage(stage: str) -> None:
    """End the stage that began with the previous stage's end, or with its task."""
    global _lap_ns, _lap_cpu_ns
    if timed and _page is not None and threading.get_ident() == _thread:
        now_ns = _clock()
        ns = now_ns - _lap_ns
        on_core_ns = ns if ns < _SHORT_NS else max(0, time.thread_time_ns() - _lap_cpu_ns)
        _page.note(stage, ns, on_core_ns)
        _lap_ns, _lap_cpu_ns = now_ns, _lap_cpu_ns + on_core_ns


def begin_samples(stage: str) -> None:
    """End the preparation of a task's samples, which is a stage and not part of the first one."""
    global _sample_ns, _sample_queued_ns
    if _page is not None and threading.get_ident() == _thread:
        end_stage(stage)
        _sample_ns = _clock()
        if timed:
            _sample_queued_ns = _queued_ns()


def note_decoded(height: int, width: int) -> None:
    """Record the decoding of an image, or of a part of it, in pixels."""
    if is_timing() and _page is not None:
        _page.note_decoded(min(height, width))


def end_sample(key: Any, stage: str = "") -> None:
    """End a sample, which began with the previous sample's end, `begin_samples`, or its task.

    Args:
        key: its number; other keys are not recorded.
        stage: ends this stage first, as `end_stage`.
    """
    global _sample_ns
    now_ns = _clock()
    sample_ns = now_ns - _sample_ns
    _sample_ns = now_ns
    if timed or sample_ns > _slow_ns:
        if stage:
            end_stage(stage)
        note_sample(key, sample_ns)


def note_sample(key: Any, ns: int) -> int:
    """Record the duration of a sample that the caller has timed.

    Returns:
        the duration from which on samples that are not `timed` should be recorded.
    """
    global _slow_ns, _sample_queued_ns
    if _page is not None and threading.get_ident() == _thread:
        if timed and ns > _LONG_NS:
            # Time without a core is not the sample's own.
            queued_ns = _queued_ns()
            if queued_ns is not None and _sample_queued_ns is not None:
                ns = max(0, ns - (queued_ns - _sample_queued_ns))
            _sample_queued_ns = queued_ns
        if ns > _slow_ns:
            _page.keep(_number(key), ns)
            _slow_ns = _page.slow_ns
        if timed:
            _page.sample(ns)
    return _slow_ns


def _number(key: Any) -> int:
    """Number of a sample that a page can store; -1 for any other key."""
    try:
        number = operator.index(key)
    except Exception:  # a custom class may raise anything
        return -1
    return number if 0 <= number < 1 << 63 else -1


def begin_task(page: StagePage | None) -> bool:
    """Begin a task that is recorded in `page`; None records nothing.

    Tasks do not nest: a task within another is a part of it.

    Returns:
        True if `end_task` must be called, however the task ends.
    """
    global _page, each_sample, timed, _thread, _slow_ns
    global _begun_ns, _begun_cpu_ns, _begun_queued_ns
    global _lap_ns, _lap_cpu_ns, _sample_ns, _sample_queued_ns
    if page is None or _page is not None:
        return False
    _page, _slow_ns = page, page.slow_ns
    tasks, tiny = page.tasks, page.sample_ns <= _NOT_TINY_NS
    is_enough = tasks >= _QUICK_TASKS or page.timed_samples >= _QUICK_SAMPLES
    every = _EVERY_QUICK if is_enough and page.own_sample_ns <= _QUICK_NS else _EVERY
    long = page.tasks_ns >= max(1, tasks) * _LONG_TASK_NS and page.sample_ns >= _LONG_NS
    timed = long or tasks % every == _EVERY // 2 - 1
    each_sample = timed or not tiny
    _thread = threading.get_ident()
    if timed:
        _begun_queued_ns = _sample_queued_ns = _queued_ns()
        _begun_cpu_ns = _lap_cpu_ns = time.thread_time_ns()
    _begun_ns = _lap_ns = _sample_ns = _clock()
    return True


def end_task() -> None:
    """End the task that `begin_task` began."""
    global _page, each_sample, timed, _slow_ns
    page, _page, each_sample = _page, None, False
    if page is not None:
        done_ns = _clock()
        page.task(_begun_ns, done_ns)
        if timed:
            cpu_ns, queued_ns = time.thread_time_ns() - _begun_cpu_ns, _queued_ns()
            if queued_ns is not None and _begun_queued_ns is not None:
                queued_ns -= _begun_queued_ns
            page.add_task_time(done_ns - _begun_ns, cpu_ns, queued_ns)
    timed, _slow_ns = False, 1 << 62


def drop_task(page: StagePage | None) -> None:
    """Discard a task of this page that Ctrl-C interrupted."""
    if page is not None and _page is page:
        _forget()


def _forget() -> None:
    global _page, each_sample, timed, _slow_ns
    _page, each_sample, timed, _slow_ns = None, False, False, 1 << 62


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # the parent's task is not the child's


_SCHEDSTAT = Path("/proc/thread-self/schedstat")


def _queued_ns() -> int | None:
    """Time that this thread was ready without a free core; asking the kernel takes about 15 us."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        return None
