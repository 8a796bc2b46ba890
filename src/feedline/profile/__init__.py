"""Recording of a loop over any iterable of batches: data wait, compute time and bottleneck."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedline.timing.run import Run


def print_why(run: Run) -> None:
    """Print the bottleneck of a run, and what to change. The global random states are unchanged.

    As HTML in a notebook, in colours in a terminal, as text elsewhere.
    """
    from feedline.randomness import seeded, unbroken  # loads torch

    with unbroken(), seeded(0):  # rich draws from Python's random state when it is imported
        from feedline.profile.diagnose import diagnose
        from feedline.profile.terminal import show

        show(diagnose(run))
