"""The figures of a run since they were last read: rates, and times of steps by percentile.

Guarantees: a reading takes a fraction of a millisecond and looks at no more than the latest 1024
steps; what was not measured is left out, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from feedline.trace.recorder import Recorder

__all__ = ["PERCENTILES", "Window"]

PERCENTILES = (50, 95, 99)


class Window:
    """Reads a recorder again and again.

    Args:
        recorder: of the run.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._at_s = recorder.now_s()
        self._steps, self._batches, self._samples = self._counts()

    def _counts(self) -> tuple[int, int, int | None]:
        recorder = self._recorder
        return recorder.recent.steps, recorder.batches, recorder.samples

    def read(self) -> dict[str, float]:
        """The figures since the last reading, by names with their units.

        Times are in ms, shares in percent. `wait` is exposed: the step waited for its batch.
        `copy` is there where it can be told from waiting.
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
            for q, ms in zip(PERCENTILES, percentiles(each), strict=False):
                figures[f"feedline/{name}_ms_p{q}"] = ms
        total = sum(map(sum, parts.values()))
        if total > 0:
            figures["feedline/wait_pct"] = 100 * sum(parts["wait"]) / total
        figures |= {f"feedline/{name}": value for name, value in recorder.latest().items()}
        self._at_s, (self._steps, self._batches, self._samples) = now_s, counts
        return figures


def percentiles(values: Sequence[float]) -> list[float]:
    """The values that 50, 95 and 99% do not exceed; empty where there are none."""
    if not values:
        return []
    ordered = sorted(values)
    return [ordered[math.ceil(q / 100 * len(ordered)) - 1] for q in PERCENTILES]
