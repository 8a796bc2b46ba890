"""What adapting to uneven batches is worth, and shorter pieces, in simulated trainings.

    python benchmarks/adapting_simulated.py [--only adapting|pieces|message]

No clock of the machine is in the first two tables: trainings go from step to step as
`tests/control/simulated.py` has it, on 16 cores, and are the same on any machine. A figure is a
step's time over its own time without waiting, or one step's time over another's, the median over
seeds. Trainings of whole batches adapt for ten minutes, ten of each, those of rows for five
minutes, five of each, from one worker and at prefetch 3.

The last table is of this machine: what a message for a piece costs that the simulation takes as
0.2 ms. Rows that take no work are handed out in pieces of one row, and in pieces as long as can
be; the difference in time over the difference in pieces is what one costs, in the median of turns
that alternate. A source without work is the most favourable case for the queue, and a machine
with few cores the least for the two processes: the figure is an order of magnitude.
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
from control.simulated import HAND_OVER_MS, Stepped, Work, now_and_then, varied
from feedline.control.decision import SettingChange

_CORES, _ROWS, _STEPS = 16, 64, 4000
_MESSAGES = 1024
_WHOLE = {"now and then": (100.0, 45.0), "all vary": (100.0, 30.0)}
"""Work of a usual batch, and a step of its own, in ms."""

_OF_ROWS = {"now and then": (220.0, 25.0), "all vary": (320.0, 25.0)}
"""Likewise, for batches that all workers share."""


class OfWorkers(Stepped):
    """A training of which only the workers adapt."""

    def follow(self, decision: SettingChange | None) -> None:
        """Do what is decided, if it is about workers."""
        super().follow(decision if decision is None or decision.what == "workers" else None)


def uneven(name: str, usual_ms: float, rows: int) -> Work:
    """Batches of a kind."""
    if name == "now and then":
        return now_and_then(usual_ms, 1 / 20, 10.0, rows)
    return varied(usual_ms, rows)


def adapted(
    kind: type[Stepped], work: Work, own_ms: float, *, whole: bool, seconds: float, seeds: int
) -> float:
    """A step's time over its own, in the median."""
    found = []
    for seed in range(seeds):
        training = kind(
            own_ms=own_ms, work=work, for_each=2 if whole else 0, cores=_CORES, workers=1, seed=seed
        )
        training.run(seconds)
        found.append(training.step_ms(_STEPS) / own_ms)
    return statistics.median(found)


def adapting() -> Iterable[str]:
    """The first table."""
    yield f"{'batches':<32}" + "".join(f"{name:>14}" for name in _WHOLE)
    for whole, rows, seconds, seeds in ((True, 1, 600.0, 10), (False, _ROWS, 300.0, 5)):
        works = _WHOLE if whole else _OF_ROWS
        for kind, said in ((OfWorkers, "only the workers adapt"), (Stepped, "all adapts")):
            line = f"{'whole' if whole else 'of rows'}, {said}"
            found = [
                adapted(
                    kind,
                    uneven(name, usual_ms, rows),
                    own_ms,
                    whole=whole,
                    seconds=seconds,
                    seeds=seeds,
                )
                for name, (usual_ms, own_ms) in works.items()
            ]
            yield f"{line:<32}" + "".join(f"{each:14.2f}" for each in found)


def gain(work: Callable[[float], Work], workers: int, own_ms: float, finer: float) -> float:
    """How many times as fast steps are with pieces of so many ms as with 50 ms, at full load."""
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
    """The second table: steps of 12 to 100 ms, workers busy for 80% of the time in the mean."""
    kinds: dict[str, Callable[[float], Work]] = {
        "all vary": lambda ms: varied(ms, _ROWS),
        "now and then": lambda ms: now_and_then(ms / 1.45, 1 / 20, 10.0, _ROWS),
    }
    for finer in (12.5, 5.0):
        for workers in (4, 8, 16):
            for name, work in kinds.items():
                gains = [gain(work, workers, own_ms, finer) for own_ms in (12.0, 25.0, 50.0, 100.0)]
                said = "".join(f"{each:8.2f}" for each in gains)
                yield f"{finer:5.1f} ms, {workers:2} workers, {name:<13}{said}"


class Nothing:
    """Rows without any work: pieces cost what handing them over costs."""

    def __init__(self) -> None:
        pixels, labels = np.zeros((_MESSAGES, 1, 1, 3), np.uint8), np.zeros(_MESSAGES, np.int64)
        self.images = feedline.ImageArray(pixels, labels, transform=feedline.EvalCrop())

    def seconds(self, task_ms: float, rows: int, epochs: int) -> float:
        """How long so many epochs take."""
        with feedline.DataLoader(
            self.images, rows, image_size=1, num_workers=1, task_ms=task_ms
        ) as loader:
            for _ in loader:
                pass
            begun = time.perf_counter()
            for _ in range(epochs):
                for _ in loader:
                    pass
            return time.perf_counter() - begun


def message(rounds: int = 3) -> Iterable[str]:
    """The last table."""
    nothing, rows, epochs = Nothing(), 256, 2
    costs = []
    for _ in range(rounds):
        fine = nothing.seconds(1e-3, rows, epochs)
        coarse = nothing.seconds(1e3, rows, epochs)
        costs.append((fine - coarse) * 1e3 / (epochs * (_MESSAGES - _MESSAGES // rows)))
    yield (
        f"a piece of one row costs {statistics.median(costs):.3f} ms more than none "
        f"({min(costs):.3f} to {max(costs):.3f}); simulated: {HAND_OVER_MS} ms"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    tables = {"adapting": adapting, "pieces": pieces, "message": message}
    parser.add_argument("--only", choices=tables, help="this table alone")
    options = parser.parse_args()
    for name, table in tables.items():
        if options.only in (None, name):
            print(name)
            for line in table():
                print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
