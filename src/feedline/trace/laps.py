"""Where the time of making samples goes, told by the code that makes them.

Code on the way of a sample calls `lap("decode")` when its part is done: the time since the lap
before it was that stage's. Whoever makes a task calls `begin(page)` before and `done()` after, and
`sample(number)` after each sample, if `laps.each`. Some of the tasks are timed stage by stage, the
others only as a whole, and sample by sample where samples are not tiny. Code that is passed for
every row asks `laps.timed` first, as in `if laps.timed: laps.lap("decode")`, which costs some ns
where a call costs 50.

Guarantees: nothing of what is made changes; outside of a task nothing is noted.
A thread that the code of a sample starts notes nothing.
Relies on: one thread of a process making tasks at a time; another one's are then not noted.
"""

from __future__ import annotations

import operator
import os
import threading
import time
from typing import Any

from feedline.trace.stage_page import StagePage

__all__ = ["begin", "decoded", "done", "drop", "lap", "sample", "sample_took", "timing"]

_EVERY, _EVERY_TINY = 8, 64
"""Every eighth task of a worker is timed stage by stage, the fourth first: others warm up. Where
samples are tiny, this is so for the first ones only, and later for every 64th. Where a task takes
long, as of samples that do, a look at a few seconds might see none of these: all but the first one
are timed."""

_LONG_TASK_NS = 100_000_000

each = False
"""Whether `sample` is to be called, of the task under way. To be read only.

That is so where it is timed stage by stage, or samples take so long that this is not felt."""

timed = False
"""Whether the task under way, if there is one, is timed stage by stage. To be read only."""

_NOT_TINY_NS = 50_000

_page: StagePage | None = None
_slow_ns = 1 << 62  # none is that slow
_thread = 0
_begun_ns = 0
_begun_cpu_ns = 0
_begun_queued_ns: int | None = None
_lap_ns = 0
_lap_cpu_ns = 0
_sample_ns = 0
_sample_queued_ns: int | None = None
_LONG_NS = 1_000_000  # of a sample: to ask the kernel what of it was waiting for a core costs 5 us
_clock = time.monotonic_ns


def timing() -> bool:
    """Whether this thread is at a task that is timed stage by stage."""
    return timed and threading.get_ident() == _thread


def lap(stage: str) -> None:
    """The stage ends that began with the lap before it, or with its task."""
    global _lap_ns, _lap_cpu_ns
    if timed and _page is not None and threading.get_ident() == _thread:
        now_ns, cpu_ns = _clock(), time.thread_time_ns()
        _page.note(stage, now_ns - _lap_ns, cpu_ns - _lap_cpu_ns)
        _lap_ns, _lap_cpu_ns = now_ns, cpu_ns


def decoded(height: int, width: int) -> None:
    """An image of so many pixels was decoded, or a part of it."""
    if timing() and _page is not None:
        _page.decoded(min(height, width))


def sample(key: Any, stage: str = "") -> None:
    """A sample is made; it began when the one before it was, or with its task.

    Args:
        key: its number; any other key has none.
        stage: as a `lap` before it.
    """
    global _sample_ns
    now_ns = _clock()
    took_ns = now_ns - _sample_ns
    _sample_ns = now_ns
    if timed or took_ns > _slow_ns:
        if stage:
            lap(stage)
        sample_took(key, took_ns)


def sample_took(key: Any, ns: int) -> int:
    """As `sample`, told by who has timed it.

    Returns:
        from which time on samples that are not `timed` need be told of.
    """
    global _slow_ns, _sample_queued_ns
    if _page is not None and threading.get_ident() == _thread:
        if timed and ns > _LONG_NS:
            # For as long as it had no core it was not the sample that was slow.
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
    """A sample's number, where its key is one that a page can hold; -1 for any other key."""
    try:
        number = operator.index(key)
    except Exception:  # of a user's class, too
        return -1
    return number if 0 <= number < 1 << 63 else -1


def begin(page: StagePage | None) -> bool:
    """A task begins; what is noted goes to `page`, nothing where that is None.

    Tasks do not nest: one within another is a part of it.

    Returns:
        whether `done` is to be called, whatever becomes of the task.
    """
    global _page, each, timed, _thread, _slow_ns
    global _begun_ns, _begun_cpu_ns, _begun_queued_ns
    global _lap_ns, _lap_cpu_ns, _sample_ns, _sample_queued_ns
    if page is None or _page is not None:
        return False
    _page, _slow_ns = page, page.slow_ns
    tasks, tiny = page.tasks, page.sample_ns <= _NOT_TINY_NS
    every = _EVERY_TINY if tiny and tasks >= _EVERY_TINY else _EVERY
    long = page.tasks_ns >= max(1, tasks) * _LONG_TASK_NS and page.sample_ns >= _LONG_NS
    timed = long or tasks % every == _EVERY // 2 - 1
    each = timed or not tiny
    _thread = threading.get_ident()
    if timed:
        _begun_queued_ns = _sample_queued_ns = _queued_ns()
        _begun_cpu_ns = _lap_cpu_ns = time.thread_time_ns()
    _begun_ns = _lap_ns = _sample_ns = _clock()
    return True


def done() -> None:
    """The task that `begin` has begun is done."""
    global _page, each, timed, _slow_ns
    page, _page, each = _page, None, False
    if page is not None:
        done_ns = _clock()
        page.task(_begun_ns, done_ns)
        if timed:
            cpu_ns, queued_ns = time.thread_time_ns() - _begun_cpu_ns, _queued_ns()
            if queued_ns is not None and _begun_queued_ns is not None:
                queued_ns -= _begun_queued_ns
            page.timed(done_ns - _begun_ns, cpu_ns, queued_ns)
    timed, _slow_ns = False, 1 << 62


def drop(page: StagePage | None) -> None:
    """A task of this page that is under way was broken off, by Ctrl-C: it is not noted."""
    if page is not None and _page is page:
        _forget()


def _forget() -> None:
    global _page, each, timed, _slow_ns
    _page, each, timed, _slow_ns = None, False, False, 1 << 62


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # what its parent is at is no task of the child's


def _queued_ns() -> int | None:
    """For how long this thread was ready while no core was free; some 5 us to ask the kernel."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
