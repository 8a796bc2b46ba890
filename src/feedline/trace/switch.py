"""Whether runs are recorded. They are, unless the environment has FEEDLINE_RECORD=0.

The switch is there to measure what recording costs: benchmarks/tracing.py. It is read when a loader
is built and when a worker begins.
"""

from __future__ import annotations

import os

__all__ = ["SWITCH", "recorded"]

SWITCH = "FEEDLINE_RECORD"


def recorded() -> bool:
    """Whether runs are recorded."""
    return os.environ.get(SWITCH, "") != "0"
