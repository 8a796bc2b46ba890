"""Steps on a device's timeline, by events of a device that is made up."""

from __future__ import annotations

import sys
import threading
import time

from feedline.timing.batch_probe import BatchInfo
from feedline.timing.recorder import Recorder
from feedline.timing.run import Loader
from feedline.timing.steps import DeviceClock


class Mark:
    """An event that the device has passed at once."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Mark) -> float:
        return later.at_ms - self.at_ms


def test_requesting_run_neither_duplicates_nor_drops_steps() -> None:
    recorder = Recorder()
    number = recorder.register_loader(Loader(kind="other", name="x"))
    record = recorder.begin(number, 0, time.monotonic_ns(), device_clock=True)
    marks = iter(range(1_000_000))
    clock = DeviceClock(lambda: Mark(float(next(marks))), record.add_step)
    over, errors = threading.Event(), []

    def ask() -> None:
        try:
            while not over.is_set():
                clock.settle()
        except Exception as error:
            errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=ask) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(3000):
            clock.batch_requested()
            clock.batch_received()
            now_ns = time.monotonic_ns()
            record.add_batch(BatchInfo(), now_ns, now_ns)
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
    clock.settle()
    recorder.end(record, "exhausted")
    (entry,) = recorder.run().passes
    assert not errors
    assert (entry.wait.count, entry.wait.total_ms) == (2999, 2999.0)
