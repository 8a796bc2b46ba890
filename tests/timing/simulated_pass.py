"""A pass over a loader, recorded on a simulated clock."""

from __future__ import annotations

import time
from typing import Any

from feedline.timing.batch_probe import BatchInfo
from feedline.timing.recorder import Recorder, WorkerObserver
from feedline.timing.run import Loader

MS = 1_000_000
LOADER = Loader(kind="other", name="tests")


class SimulatedPass:
    """A pass whose clock starts with it."""

    def __init__(
        self,
        recorder: Recorder,
        loader: Loader = LOADER,
        workers: WorkerObserver | None = None,
        **options: Any,
    ) -> None:
        self.recorder, self.now_ns = recorder, time.monotonic_ns()
        number = recorder.register_loader(loader, workers)
        self.record = recorder.begin(number, None, self.now_ns, **options)

    def batch(self, wait_ms: int, compute_ms: int = 0, batch: BatchInfo | None = None) -> None:
        """Compute, then wait for a batch."""
        asked_ns = self.now_ns + compute_ms * MS
        self.now_ns = asked_ns + wait_ms * MS
        self.record.add_batch(batch or BatchInfo(64, 8, 1000, 500, False), asked_ns, self.now_ns)

    def end(self, how: str = "exhausted") -> None:
        self.recorder.end(self.record, how)
