"""Where the time of making a sample goes, told by the code that makes it.

Code on the way of a sample calls `lap("decode")` when its part is done; the time since the lap
before it is that stage's. In a process that is not being timed a lap is a call of an empty
function, about 50 ns. A worker times some of its tasks (`TIMED`), not all, so that what is timed
is the same sort of work and the rest of it costs nothing.

Relies on: being used from one thread of a process, which is a worker's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

__all__ = ["TIMED", "Note", "lap", "timed"]

Note: TypeAlias = Callable[[str, int], None]
"""Takes a stage's name and how long it took, in ns."""

TIMED = 8
"""Every eighth task of a worker is timed stage by stage."""

_note: Note | None = None
_last_ns = 0


def lap(stage: str) -> None:
    """The stage ends that began with the lap before it, or with `timed`."""
    if _note is not None:
        _lap(_note, stage)


def _lap(note: Note, stage: str) -> None:
    global _last_ns
    now_ns = time.monotonic_ns()
    note(stage, now_ns - _last_ns)
    _last_ns = now_ns


@contextmanager
def timed(note: Note | None) -> Iterator[None]:
    """Within a `with`: laps are told to `note`. None leaves all as it is."""
    global _note, _last_ns
    if note is None:
        yield
        return
    before, _note, _last_ns = _note, note, time.monotonic_ns()
    try:
        yield
    finally:
        _note = before
