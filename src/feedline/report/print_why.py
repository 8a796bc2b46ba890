"""The verdict on a run, printed in the middle of a training.

Guarantees: the global random states stay as they are.
"""

from __future__ import annotations

from feedline.randomness import seeded, unbroken
from feedline.trace.run import Run

__all__ = ["print_why"]


def print_why(run: Run) -> None:
    """Print what holds a run back, and what to do about it.

    As HTML in a notebook, in colours in a terminal, as text elsewhere.
    """
    with unbroken(), seeded(0):  # rich draws from Python's random state when it is loaded
        from feedline.diagnose.diagnose import diagnose
        from feedline.report.why import show

        show(diagnose(run))
