"""Metrics of a run since the last reading, and the callback that receives them every few seconds.

Guarantees: reading takes a fraction of a millisecond and covers at most the latest 1024 steps. A
value that was not measured is missing, never 0. The callback runs within a step, in the thread that
iterates over the batches, and at the end of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice

from feedline.timing.recorder import Recorder

__all__ = ["MetricsCallback", "MetricsReader", "MetricsReporter"]


MetricsCallback = Callable[[dict[str, float]], object]
"""Function of metrics by name, as returned by `MetricsReader.read`."""

_MIN_S = 1.0
_PERCENTILES = (50, 95, 99)


class MetricsReporter:
    """Passes a run's metrics to a callback.

    Args:
        recorder: recorder of the run.
        callback: receives the metrics.
        every_s: interval in seconds.
    """

    name = "the metrics callback"

    def __init__(self, recorder: Recorder, callback: MetricsCallback, every_s: float) -> None:
        self._metrics = MetricsReader(recorder)
        self._callback = callback
        self._every_s = every_s
        self._reported_s = recorder.now_s()
        self._has_reported = False

    def tick(self, now_s: float) -> None:
        """Report if the interval has passed; `now_s` is the time since the run's start."""
        if now_s - self._reported_s >= self._every_s:
            self._report(now_s)

    def end(self, now_s: float) -> None:
        """Report at the end of a pass, as the next one may start much later."""
        if not self._has_reported or now_s - self._reported_s >= min(_MIN_S, self._every_s):
            self._report(now_s)

    def _report(self, now_s: float) -> None:
        self._reported_s, self._has_reported = now_s, True
        self._callback(self._metrics.read())


class MetricsReader:
    """Reads the metrics of a run at intervals.

    Args:
        recorder: recorder of the run.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._at_s = recorder.now_s()
        self._steps, self._batches, self._samples = self._counts()

    def _counts(self) -> tuple[int, int, int | None]:
        recorder = self._recorder
        return recorder.recent.steps, recorder.batches, recorder.samples

    def read(self) -> dict[str, float]:
        """Return the metrics since the last reading, by names with units.

        Times are in ms, shares in percent. `wait` is the data wait. `copy` is missing if it cannot
        be separated from the wait.
        """
        recorder = self._recorder
        recorder.flush()
        now_s, counts = recorder.now_s(), self._counts()
        seconds = max(1e-9, now_s - self._at_s)
        steps, batches, samples = counts
        figures = {
            "feedline/batches": float(batches),
            "feedline/batches_per_s": (batches - self._batches) / seconds,
        }
        if samples is not None and self._samples is not None:
            figures["feedline/images_per_s"] = (samples - self._samples) / seconds
        latest = list(recorder.recent)
        new = min(len(latest), steps - self._steps)
        times = list(islice(latest, len(latest) - new, None))
        parts = {
            "wait": [step[0] for step in times],
            "copy": [step[1] for step in times if step[1] is not None],
            "compute": [step[2] for step in times],
        }
        for name, each in parts.items():
            for q, ms in zip(_PERCENTILES, percentiles(each), strict=False):
                figures[f"feedline/{name}_ms_p{q}"] = ms
        total = sum(map(sum, parts.values()))
        if total > 0:
            figures["feedline/wait_pct"] = 100 * sum(parts["wait"]) / total
        figures |= {f"feedline/{name}": value for name, value in recorder.latest().items()}
        self._at_s, (self._steps, self._batches, self._samples) = now_s, counts
        return figures


def percentiles(values: Sequence[float]) -> list[float]:
    """Return the 50th, 95th and 99th percentile; empty without values."""
    if not values:
        return []
    ordered = sorted(values)
    return [ordered[math.ceil(q / 100 * len(ordered)) - 1] for q in _PERCENTILES]
