"""Show a diagnosis: as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console, RenderableType

from feedline.profile.finding import Diagnosis
from feedline.profile.page import diagnosis_html
from feedline.profile.terminal import WIDTH, columns, diagnosis_view
from feedline.profile.terminal_timeline import glyphs_for

__all__ = ["DiagnosisView", "diagnosis_text", "show"]


class DiagnosisView:
    """Diagnosis to be displayed.

    A notebook shows it as HTML, `print` as text.

    Args:
        verdict: the diagnosis of the run.
    """

    def __init__(self, verdict: Diagnosis) -> None:
        self.verdict = verdict

    def __str__(self) -> str:
        return diagnosis_text(self.verdict)

    __repr__ = __str__

    def __rich__(self) -> RenderableType:
        return diagnosis_view(self.verdict, glyphs_for(sys.stdout))

    def _repr_html_(self) -> str:
        return diagnosis_html(self.verdict)


def diagnosis_text(verdict: Diagnosis) -> str:
    """Format a diagnosis as text, in lines of at most 100 columns, without colours."""
    # In a notebook rich would also display the captured text, as an empty box.
    console = Console(
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(diagnosis_view(verdict, glyphs_for(sys.stdout)))
    return captured.get().rstrip("\n")


def show(verdict: Diagnosis) -> None:
    """Print a diagnosis: as HTML in a notebook, with colours in a terminal, as text elsewhere."""
    why = DiagnosisView(verdict)
    if _in_a_notebook():
        from IPython.display import display

        display(why)
    else:
        console = Console(highlight=False)
        console.width = columns(console)
        console.print(why)


def _in_a_notebook() -> bool:
    """Return True if IPython runs with a kernel, so that display() goes to a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None
