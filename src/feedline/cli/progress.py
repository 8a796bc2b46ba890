"""A progress bar for long work: drawn with rich on a terminal, silent elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["counting"]


@contextmanager
def counting(what: str, *, total: int) -> Iterator[Callable[[int], None]]:
    """Show how many of `total` things are done; yields the function to tell it the number."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console  # takes a tenth of a second, so only where it is drawn
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), Remaining())
    # stdout stays the caller's: rich would send it to the bar's own stream.
    with Progress(
        *columns, console=Console(stderr=True), transient=True, redirect_stdout=False
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
