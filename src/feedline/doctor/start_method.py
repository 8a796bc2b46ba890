"""How workers start here."""

from __future__ import annotations

import multiprocessing
import sys

from feedline.doctor.check import Check
from feedline.engine.start_method import default_start_method

__all__ = ["look_at_start_method"]


def look_at_start_method() -> Check:
    """The check "start-method"."""
    own, python = default_start_method(), multiprocessing.get_all_start_methods()[0]
    details = {"feedline": own, "python_default": python, "platform": sys.platform}
    if own == "forkserver":
        return Check(
            id="start-method",
            status="ok",
            summary=f"forkserver for feedline's own sources, {python} for any other Dataset, as "
            f"Python {sys.version_info.major}.{sys.version_info.minor} has it",
            details=details,
        )
    return Check(
        id="start-method",
        status="note",
        summary=f"{own} for all workers: {sys.platform} has no memfd, which the quicker ways need",
        details=details,
        fix='guard the script with `if __name__ == "__main__":`, as each worker imports it',
    )
