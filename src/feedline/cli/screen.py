"""How a command prints a view: with colours in a terminal, as text elsewhere.

Guarantees: 100 columns, or fewer in a terminal that is narrower; no colour with NO_COLOR; a
character that the stream cannot write is spelt.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["columns", "say"]


def columns() -> int:
    """How many columns there are to print in."""
    from rich.console import Console

    from feedline.report import terminal

    return terminal.columns(Console())


def say(view: RenderableType) -> None:
    """Print a view to stdout."""
    from rich.console import Console

    console = Console(width=columns(), highlight=False)
    with console.capture() as captured:
        console.print(view)
    encoding = sys.stdout.encoding or "utf-8"
    lines = (line.rstrip() for line in captured.get().split("\n"))
    text = "\n".join(lines).rstrip("\n")
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding))
