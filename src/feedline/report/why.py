"""A verdict to look at: in a terminal as text, in a notebook as HTML."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, RenderableType

from feedline.diagnose.finding import Diagnosis
from feedline.report.glyphs import glyphs_for
from feedline.report.page import verdict_html
from feedline.report.terminal import WIDTH, columns, verdict_view

__all__ = ["Why", "show", "verdict_text"]


class Why:
    """What binds a run, and what to do about it.

    A notebook shows it as HTML, `print` as text.

    Args:
        verdict: of the run.
    """

    def __init__(self, verdict: Diagnosis) -> None:
        self.verdict = verdict

    def __str__(self) -> str:
        return verdict_text(self.verdict)

    __repr__ = __str__

    def __rich__(self) -> RenderableType:
        return verdict_view(self.verdict, glyphs_for(sys.stdout))

    def _repr_html_(self) -> str:
        return verdict_html(self.verdict)


def verdict_text(verdict: Diagnosis) -> str:
    """A verdict as text, in lines of at most 100 columns, without colours."""
    # In a notebook rich would show what is captured, too: an empty box.
    console = Console(
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(verdict_view(verdict, glyphs_for(sys.stdout)))
    return captured.get().rstrip("\n")


def show(verdict: Diagnosis) -> None:
    """Print a verdict: as HTML in a notebook, with colours in a terminal, as text elsewhere."""
    why = Why(verdict)
    if _in_a_notebook():
        from IPython.display import display

        display(why)
    else:
        console = Console(highlight=False)
        console.width = columns(console)
        console.print(why)


def _in_a_notebook() -> bool:
    """Whether what is displayed goes to a notebook: IPython runs, with a kernel."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None
