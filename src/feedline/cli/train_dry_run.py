"""`feedline train --dry-run`: the plan of a run, rehearsed and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from feedline.train.assignment import Assignment

__all__ = ["print_plan"]


def print_plan(what: Assignment, rehearse: float | None) -> dict[str, Any]:
    """Plan a run and print that; the same, JSON-able.

    Args:
        what: would be trained.
        rehearse: seconds for each size; None for the usual ones.

    Raises:
        UsageError: what a run would refuse.
    """
    from rich.progress import TimeElapsedColumn

    from feedline.cli.progress import note, progress_bar
    from feedline.train.dry_run import BUDGET_S, dry_run  # loads torch

    with progress_bar(TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=None)
        plan = dry_run(
            what.recipe,
            what.asked,
            what.earlier,
            budget_s=BUDGET_S if rehearse is None else rehearse,
            note=lambda text: note(bar, text),
            told=lambda text: bar.update(task, description=text),
        )
    typer.echo(str(plan))
    return plan.as_dict()
