"""How `feedline bench` shows how far it is.

Guarantees: nothing is drawn while images are counted. A bar that moves by itself would take its
share of the cores.
"""

from __future__ import annotations

import time

from rich.progress import Progress

__all__ = ["BenchProgress"]

_BETWEEN_S = 0.1


class BenchProgress:
    """A benchmark's `ProgressListener` to a bar that does not refresh itself."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)
        self._drawn = 0.0

    def begin(self, what: str, total: int) -> None:
        """Show a new description and an empty bar."""
        self._bar.update(self._task, description=what, completed=0, total=total, refresh=True)

    def advance(self, done: int, what: str = "") -> None:
        """Move the bar; it is drawn at most ten times a second, a new description at once."""
        now = time.monotonic()
        draw = bool(what) or now - self._drawn >= _BETWEEN_S
        if draw:
            self._drawn = now
        self._bar.update(self._task, description=what or None, completed=done, refresh=draw)
