"""Recording of a run: time of steps, stage timings of workers, processes, all on one clock.

Runs are recorded unless the environment has FEEDLINE_RECORD=0. The switch exists to measure the
cost of recording (benchmarks/tracing.py); it is read when a loader is built and when a worker
starts.
"""

from __future__ import annotations

import os

RECORD_SWITCH = "FEEDLINE_RECORD"


def is_recording_enabled() -> bool:
    """Return True if runs are recorded."""
    return os.environ.get(RECORD_SWITCH, "") != "0"
