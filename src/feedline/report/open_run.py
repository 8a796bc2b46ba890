"""A run that was recorded, as the facts of its report."""

from __future__ import annotations

import os

from feedline.diagnose.diagnose import diagnose
from feedline.report.facts import Facts, facts_of
from feedline.trace.run_file import read_run

__all__ = ["facts_at"]


def facts_at(where: str | os.PathLike[str]) -> Facts:
    """The facts of the run in a folder or a file.

    Raises:
        UsageError: it is missing, damaged, no run, or of a newer feedline.
    """
    run = read_run(where)
    return facts_of(run, diagnose(run))
