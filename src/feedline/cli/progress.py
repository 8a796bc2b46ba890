"""The progress bar of every command: on stderr where that is a terminal, nothing elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

__all__ = ["note", "progress_bar"]


def progress_bar(clock: ProgressColumn, *, auto_refresh: bool = True) -> Progress:
    """A bar that is gone at the end; a context manager.

    Args:
        clock: the column at the end: the time that passed or that remains.
        auto_refresh: draw it ten times a second; else only when it is told to.
    """
    drawn = sys.stderr.isatty()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        clock,
        # stdout stays the command's own: rich would send it to the bar's stream.
        console=Console(stderr=True, quiet=not drawn),
        transient=True,
        redirect_stdout=False,
        auto_refresh=auto_refresh,
        disable=not drawn,
    )


def note(bar: Progress, text: str) -> None:
    """Print a line to stdout, above a bar on the same screen."""
    if sys.stdout.isatty() and not bar.disable:  # the bar steps aside
        bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
        print(text, flush=True)
