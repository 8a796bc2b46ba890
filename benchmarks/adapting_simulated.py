"""Simulate online adaptation to uneven batches, and smaller tasks.

    python benchmarks/adapting_simulated.py [--only adapting|pieces|message]

Tables "adapting" and "pieces" use simulated time only (`tests/throughput/simulated.py`, 16 cores)
and are identical on every machine. They print step time over its own compute time, or the ratio of
two step times, as medians over seeds. Trainings start with one worker and prefetch 3; whole-batch
workloads adapt for 10 minutes with 10 seeds, row workloads for 5 minutes with 5 seeds.

Table "message" is measured on this machine: the cost of handing over one task, which the simulation
assumes to be 0.2 ms. Rows without any work are read in tasks of one row and in tasks as large as
possible; the figure is the difference in time over the difference in number of tasks, the median of
alternating turns. An empty source favours the queue and few cores penalise the two processes, so
read it as an order of magnitude.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import feedline
from feedline.throughput.controller import SettingChange
from throughput.simulated import HAND_OVER_MS, Stepped, Work, now_and_then, varied

_CORES, _ROWS, _STEPS = 16, 64, 4000
_MESSAGES = 1024
_WHOLE = {"now and then": (100.0, 45.0), "all vary": (100.0, 30.0)}
"""Time of a usual batch and of a step, in ms, by workload; whole-batch tasks."""

_OF_ROWS = {"now and then": (220.0, 25.0), "all vary": (320.0, 25.0)}
"""The same for batches that all workers share."""


class WorkersOnly(Stepped):
    """A training whose controller only changes the number of workers."""

    def follow(self, decision: SettingChange | None) -> None:
        """Apply a decision if it concerns workers."""
        super().follow(decision if decision is None or decision.what == "workers" else None)


def uneven(name: str, usual_ms: float, rows: int) -> Work:
    if name == "now and then":
        return now_and_then(usual_ms, 1 / 20, 10.0, rows)
    return varied(usual_ms, rows)


def relative_step_time(
    kind: type[Stepped], work: Work, own_ms: float, *, whole: bool, seconds: float, seeds: int
) -> float:
    """Median of step time over compute time."""
    ratios = []
    for seed in range(seeds):
        training = kind(
            own_ms=own_ms, work=work, for_each=2 if whole else 0, cores=_CORES, workers=1, seed=seed
        )
        training.run(seconds)
        ratios.append(training.step_ms(_STEPS) / own_ms)
    return statistics.median(ratios)


def adapting() -> Iterable[str]:
    """Yield the rows of the table of adaptation."""
    yield f"{'batches':<32}" + "".join(f"{name:>14}" for name in _WHOLE)
    for whole, rows, seconds, seeds in ((True, 1, 600.0, 10), (False, _ROWS, 300.0, 5)):
        works = _WHOLE if whole else _OF_ROWS
        for kind, label in ((WorkersOnly, "only the workers adapt"), (Stepped, "all adapts")):
            line = f"{'whole' if whole else 'of rows'}, {label}"
            ratios = [
                relative_step_time(
                    kind,
                    uneven(name, usual_ms, rows),
                    own_ms,
                    whole=whole,
                    seconds=seconds,
                    seeds=seeds,
                )
                for name, (usual_ms, own_ms) in works.items()
            ]
            yield f"{line:<32}" + "".join(f"{each:14.2f}" for each in ratios)


def gain(work: Callable[[float], Work], workers: int, own_ms: float, finer: float) -> float:
    """Speed-up from tasks of `finer` ms instead of 50 ms, with workers 80% busy."""
    gains = []
    for seed in range(5):
        took = []
        for task_ms in (50.0, finer):
            training = Stepped(
                own_ms=own_ms,
                work=work(0.8 * workers * own_ms),
                cores=workers,
                workers=workers,
                seed=seed,
                task_ms=task_ms,
            )
            took.append(training.step_ms(1000))
        gains.append(took[0] / took[1])
    return statistics.median(gains)


def pieces() -> Iterable[str]:
    """Yield the table of task sizes: steps of 12 to 100 ms, workers 80% busy on average."""
    kinds: dict[str, Callable[[float], Work]] = {
        "all vary": lambda ms: varied(ms, _ROWS),
        "now and then": lambda ms: now_and_then(ms / 1.45, 1 / 20, 10.0, _ROWS),
    }
    for finer in (12.5, 5.0):
        for workers in (4, 8, 16):
            for name, work in kinds.items():
                gains = [gain(work, workers, own_ms, finer) for own_ms in (12.0, 25.0, 50.0, 100.0)]
                cells = "".join(f"{each:8.2f}" for each in gains)
                yield f"{finer:5.1f} ms, {workers:2} workers, {name:<13}{cells}"


class Nothing:
    """Rows without any work, to measure the cost of handing tasks over."""

    def __init__(self) -> None:
        pixels, labels = np.zeros((_MESSAGES, 1, 1, 3), np.uint8), np.zeros(_MESSAGES, np.int64)
        self.images = feedline.ImageArray(pixels, labels, transform=feedline.EvalCrop())

    def seconds(self, task_ms: float, rows: int, epochs: int) -> float:
        """Seconds to read `epochs` epochs."""
        with feedline.DataLoader(
            self.images, rows, image_size=1, num_workers=1, task_ms=task_ms
        ) as loader:
            for _ in loader:
                pass
            start_s = time.perf_counter()
            for _ in range(epochs):
                for _ in loader:
                    pass
            return time.perf_counter() - start_s


def message(rounds: int = 3) -> Iterable[str]:
    """Measure the cost of handing over one task."""
    nothing, rows, epochs = Nothing(), 256, 2
    costs = []
    for _ in range(rounds):
        fine = nothing.seconds(1e-3, rows, epochs)
        coarse = nothing.seconds(1e3, rows, epochs)
        costs.append((fine - coarse) * 1e3 / (epochs * (_MESSAGES - _MESSAGES // rows)))
    yield (
        f"a task of one row costs {statistics.median(costs):.3f} ms more than none "
        f"({min(costs):.3f} to {max(costs):.3f}); simulated: {HAND_OVER_MS} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    tables = {"adapting": adapting, "pieces": pieces, "message": message}
    parser.add_argument("--only", choices=tables, help="print only this table")
    options = parser.parse_args()
    for name, table in tables.items():
        if options.only in (None, name):
            print(name)
            for line in table():
                print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
