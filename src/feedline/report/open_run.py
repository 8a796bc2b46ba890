"""A run that was recorded, as the facts of its report."""

from __future__ import annotations

import os
from pathlib import Path

from feedline.diagnose.diagnose import diagnose
from feedline.report.facts import Facts, facts_of
from feedline.report.learned import read_learned
from feedline.trace.run_file import read_run

__all__ = ["facts_at"]


def facts_at(where: str | os.PathLike[str]) -> Facts:
    """The facts of the run in a folder or a file.

    Raises:
        UsageError: it is missing, damaged, no run, or of a newer feedline.
    """
    run = read_run(where)
    path = Path(where)
    learned, note = read_learned(path if path.is_dir() else path.parent)
    return facts_of(run, diagnose(run), learned, note)
