"""How a benchmark shows how far it is: a bar where stderr is a terminal, nothing elsewhere.

Guarantees: nothing is drawn while images are counted. A bar that moves by itself would take its
share of the cores.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["BenchProgress", "Report"]

_BETWEEN_S = 0.1


class Report(Protocol):
    """Is told what a benchmark does."""

    def begin(self, what: str, total: int) -> None:
        """Some work of `total` parts begins."""
        ...

    def advance(self, done: int, what: str = "") -> None:
        """So many parts are done; `what` renames the work where it is not ""."""
        ...


class BenchProgress:
    """A `Report` to the terminal; a context manager."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._drawn = 0.0
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,
            )
            self._task = self._bar.add_task("starting", total=None)

    def begin(self, what: str, total: int) -> None:
        """Show a new description and an empty bar."""
        if self._bar:
            self._bar.update(self._task, description=what, completed=0, total=total, refresh=True)

    def advance(self, done: int, what: str = "") -> None:
        """Move the bar; a few times a second it is drawn, and with a new description at once."""
        if not self._bar:
            return
        now = time.monotonic()
        draw = bool(what) or now - self._drawn >= _BETWEEN_S
        if draw:
            self._drawn = now
        self._bar.update(self._task, description=what or None, completed=done, refresh=draw)

    def __enter__(self) -> BenchProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()
