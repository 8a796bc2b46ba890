"""Where the time of making samples goes, told by the code that makes them.

Code on the way of a sample calls `lap("decode")` when its part is done: the time since the lap
before it was that stage's. Whoever makes a task wraps it in `task(page)`, and says after each
sample `sample(number)`. Some of the tasks are timed stage by stage, the others only as a whole and
sample by sample, so that a lap mostly is a call that returns at once, some 50 ns.

Guarantees: nothing of what is made changes; outside of a task nothing is noted.
A thread that the code of a sample starts notes nothing.
Relies on: one thread of a process making tasks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from feedline.trace.stage_page import StagePage

__all__ = ["decoded", "lap", "sample", "task", "timing"]

_EVERY = 8
"""Every eighth task of a worker is timed stage by stage, the fourth first: others warm up."""

_page: StagePage | None = None
_timed = False
_thread = 0
_lap_ns = 0
_lap_cpu_ns = 0
_sample_ns = 0
_sample_queued_ns: int | None = None
_LONG_NS = 1_000_000  # of a sample, to ask the kernel for what it waited


def timing() -> bool:
    """Whether this thread is at a task that is timed stage by stage."""
    return _timed and threading.get_ident() == _thread


def lap(stage: str) -> None:
    """The stage ends that began with the lap before it, or with its task."""
    global _lap_ns, _lap_cpu_ns
    if timing() and _page is not None:
        now_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        _page.note(stage, now_ns - _lap_ns, cpu_ns - _lap_cpu_ns)
        _lap_ns, _lap_cpu_ns = now_ns, cpu_ns


def decoded(height: int, width: int) -> None:
    """An image of so many pixels was decoded, or the part of it that is wanted."""
    if timing() and _page is not None:
        _page.decoded(min(height, width))


def sample(number: int) -> None:
    """A sample is made; it began when the one before it was, or with its task."""
    global _sample_ns, _sample_queued_ns
    if _page is None:
        return
    now_ns = time.monotonic_ns()
    took_ns, _sample_ns = now_ns - _sample_ns, now_ns
    if _timed and took_ns > _LONG_NS:
        # For as long as it had no core it was not the sample that was slow.
        queued_ns = _queued_ns()
        if queued_ns is not None and _sample_queued_ns is not None:
            took_ns = max(0, took_ns - (queued_ns - _sample_queued_ns))
        _sample_queued_ns = queued_ns
    if took_ns > _page.slow_ns:
        _page.keep(number, took_ns)
    if _timed:
        _page.sample(took_ns)


@contextmanager
def task(page: StagePage | None) -> Iterator[None]:
    """A task, within a `with`: what is noted goes to `page`; None notes nothing.

    Tasks do not nest: one within another is a part of it.
    """
    global _page, _timed, _thread, _lap_ns, _lap_cpu_ns, _sample_ns, _sample_queued_ns
    if page is None or _page is not None:
        yield
        return
    _page, _timed = page, page.tasks % _EVERY == _EVERY // 2 - 1
    _thread = threading.get_ident()
    begun_cpu_ns = _lap_cpu_ns = time.thread_time_ns() if _timed else 0
    begun_queued_ns = _sample_queued_ns = _queued_ns() if _timed else None
    begun_ns = _lap_ns = _sample_ns = time.monotonic_ns()
    try:
        yield
    finally:
        done_ns = time.monotonic_ns()
        page.task(begun_ns, done_ns)
        if _timed:
            cpu_ns = time.thread_time_ns() - begun_cpu_ns
            queued_ns = _queued_ns()
            if queued_ns is not None and begun_queued_ns is not None:
                queued_ns -= begun_queued_ns
            page.timed(done_ns - begun_ns, cpu_ns, queued_ns)
        _page, _timed = None, False


def _queued_ns() -> int | None:
    """For how long this thread was ready while no core was free; some 5 us to ask the kernel."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
