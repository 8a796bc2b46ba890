"""Compare online adaptation of the number of workers with the best fixed number of workers.

    python benchmarks/adapting.py FOLDER [--json FILE] [--only NAME]

Workloads: each training step either sleeps for a fixed time, as if the work ran on a GPU, or
computes a fixed number of matrix products on a CPU core, which take longer if workers leave no core
to it (named "on a core").

Method: first each fixed number of workers is measured for a few seconds after a warm-up; the
fastest is the reference. Then the loader starts with 1 worker, and again with 4 times the best
number, and adapts (`loader.adapts`) for 30 s; afterwards this loader and one with the best fixed
number are measured alternately in one process. Each row prints when the number of workers last
changed, the final number, and the median ratio to the reference with its range. If batch times
vary, fixed loaders prefetch the default number of batches, so the ratio may exceed 1.

The last rows are a whole progressive run over the folder: `num_workers="auto"` relative to the best
fixed number of workers. For each phase they also print the settling time: the end of the first
second after which the rate per second stays within 5% of the phase's steady rate (the median of its
second half). Target: 5 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from report import machine
from torch.utils.data import Dataset

import feedline
from feedline.system import usable_cores

_WORKERS = (1, 2, 3, 4, 6, 8)
_WARM_S, _FIXED_S, _LEARN_S, _TURN_S, _TURNS = 2.0, 6.0, 30.0, 4.0, 5


class RemoteSamples(Dataset[torch.Tensor]):
    """Samples fetched from a simulated server: each waits before it is returned.

    Args:
        ms: wait per sample, in milliseconds.
        slow_in: one in this many samples waits ten times as long; 0 for none.
    """

    def __init__(self, ms: float, slow_in: int = 0) -> None:
        self.ms, self.slow_in = ms, slow_in

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> torch.Tensor:
        slow = self.slow_in and number % self.slow_in == 0
        time.sleep(self.ms * (10 if slow else 1) / 1000)
        return torch.zeros(3, 64, 64, dtype=torch.uint8)


@dataclass(frozen=True)
class AdaptedLoader:
    """Result of a loader that adapted.

    Args:
        changed_s: time of the last change of the number of workers, in seconds.
        workers: final number of workers.
        shares: rate relative to the best fixed number of workers, one per turn.
    """

    changed_s: float
    workers: int
    shares: list[float]

    def __str__(self) -> str:
        low, high = min(self.shares), max(self.shares)
        return (
            f"{self.workers} workers after {self.changed_s:.1f} s, "
            f"{statistics.median(self.shares):.3f} ({low:.3f}-{high:.3f})"
        )


@dataclass
class Row:
    """Measurements of one workload.

    Args:
        name: name of the workload.
        best: fastest fixed number of workers.
        rate: steps per second with `best` workers.
        fixed: steps per second by fixed number of workers.
        started: results of adapting loaders, by initial number of workers.
    """

    name: str
    best: int
    rate: float
    fixed: dict[int, float]
    started: dict[int, AdaptedLoader] = field(default_factory=dict)


def trainings(
    folder: Path,
) -> dict[str, tuple[Callable[[int], Any], Callable[[], Callable[[], None]]]]:
    """Loader and step factories by workload name."""

    def images(size: int) -> Callable[[int], Any]:
        return lambda workers: feedline.DataLoader(
            feedline.ImageFolder(str(folder), transform=feedline.TrainCrop()),
            32,
            image_size=size,
            shuffle=True,
            seed=0,
            num_workers=workers,
        )

    def remote(ms: float) -> Callable[[int], Any]:
        return lambda workers: feedline.DataLoader(
            RemoteSamples(ms), 8, shuffle=True, seed=0, num_workers=workers, persistent_workers=True
        )

    def uneven(workers: int) -> Any:
        data = RemoteSamples(50, slow_in=20)
        return feedline.DataLoader(data, None, shuffle=True, num_workers=workers)

    return {
        "photographs at 112 px, a step of 5 ms: bound by decoding": (
            images(112),
            partial(SleepingStep, 5),
        ),
        "photographs at 112 px, a step of 30 ms": (images(112), partial(SleepingStep, 30)),
        "photographs at 224 px, a step of 100 ms: bound by the step": (
            images(224),
            partial(SleepingStep, 100),
        ),
        "samples of a server, a step of 20 ms": (remote(10), partial(SleepingStep, 20)),
        "whole batches, one in twenty for ten times as long, a step of 40 ms": (
            uneven,
            partial(SleepingStep, 40),
        ),
        "samples of a slow server, a step of 100 ms": (remote(30), partial(SleepingStep, 100)),
        "photographs at 112 px, a step that computes 30 ms on a core": (
            images(112),
            partial(ComputingStep, 30),
        ),
    }


class SleepingStep:
    """A training step that sleeps and uses no core.

    Args:
        ms: duration of the step, in milliseconds.
    """

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __call__(self) -> None:
        time.sleep(self.ms / 1000)


class ComputingStep:
    """A training step that computes on one thread.

    Args:
        ms: duration on an idle core, in milliseconds. The number of matrix products is calibrated
            from the fastest of several timings.
    """

    def __init__(self, ms: float) -> None:
        torch.set_num_threads(1)
        self.ms = ms
        self._operand, self._product = torch.randn(128, 128), torch.empty(128, 128)
        self._products = 50
        each_s = min(self._timed() for _ in range(20)) / self._products
        self._products = max(1, round(ms / 1000 / each_s))

    def __call__(self) -> None:
        for _ in range(self._products):
            torch.mm(self._operand, self._operand, out=self._product)

    def _timed(self) -> float:
        start_s = time.perf_counter()
        self()
        return time.perf_counter() - start_s


class Training:
    """Training loop over a loader, epoch after epoch."""

    def __init__(self, loader: Any, step: Callable[[], None]) -> None:
        self.loader, self._step = loader, step
        self._batches = iter(loader)

    def rate(self, seconds: float) -> float:
        """Run for `seconds`; return steps per second."""
        start_s, steps = time.perf_counter(), 0
        while time.perf_counter() - start_s < seconds:
            try:
                next(self._batches)
            except StopIteration:
                self._batches = iter(self.loader)
                continue
            self._step()
            steps += 1
        return steps / (time.perf_counter() - start_s)


def measure(
    name: str, build: Callable[[int], Any], make_step: Callable[[], Callable[[], None]]
) -> Row:
    """Measure a workload with each fixed number of workers, then adapting from 1 and from many."""
    step = make_step()
    fixed = {}
    for workers in _WORKERS:
        with build(workers) as loader:
            training = Training(loader, step)
            training.rate(_WARM_S)
            fixed[workers] = training.rate(_FIXED_S)
    best = max(fixed, key=lambda workers: fixed[workers])
    row = Row(name, best, fixed[best], fixed)
    for start in sorted({1, min(4 * best, 16)}):
        with build(start) as loader:
            training = Training(loader, step)
            training.rate(_WARM_S)  # workers start; only then is there a training to adapt to
            loader.adapts = True
            start_s, changed = time.perf_counter(), 0.0
            workers = loader.num_workers
            while time.perf_counter() - start_s < _LEARN_S:
                training.rate(0.2)
                if loader.num_workers != workers:
                    workers, changed = loader.num_workers, time.perf_counter() - start_s
            print(*(f"      from {start}: {each}" for each in loader.adaptations), sep="\n")
            loader.adapts = False
            shares = []
            with build(best) as fixed_loader:
                reference = Training(fixed_loader, step)
                reference.rate(_WARM_S)
                for _ in range(_TURNS):
                    adapted_rate = training.rate(_TURN_S)
                    shares.append(adapted_rate / reference.rate(_TURN_S))
            row.started[start] = AdaptedLoader(changed, loader.num_workers, shares)
    return row


def settling_s(ends: Sequence[float]) -> float:
    """Settling time: seconds until the rate stays within 5% of its steady value.

    Args:
        ends: end time of each step, in seconds since the phase began.
    """
    seconds = int(ends[-1]) if ends else 0
    rates = [sum(k <= end < k + 1 for end in ends) for k in range(seconds)]
    if len(rates) < 4:
        return float("nan")
    steady = statistics.median(rates[len(rates) // 2 :])
    # A second holds a whole number of steps, so one more or less is no difference.
    away = [k for k, rate in enumerate(rates) if abs(rate - steady) > max(1, 0.05 * steady)]
    within = len(rates) // 2
    return float(max((k + 1 for k in away if k < within), default=0))


@dataclass
class Progressive:
    """Measurements of whole progressive runs.

    Args:
        took: seconds of each run, by number of workers (or "auto").
        settled: settling times of the phases of "auto" runs, in seconds, by image size.
    """

    took: dict[str, list[float]] = field(default_factory=dict)
    settled: dict[int, list[float]] = field(default_factory=dict)


def progressive(folder: Path, rounds: int = 3) -> Progressive:
    """Run a schedule of three sizes with each number of workers."""
    results = Progressive()
    for _ in range(rounds):
        for workers in ("auto", *sorted({1, usable_cores(), 2 * usable_cores()})):
            steps: list[tuple[int, float]] = []
            start_s = time.perf_counter()
            with feedline.DataLoader(
                feedline.ImageFolder(str(folder), transform=feedline.TrainCrop()),
                32,
                schedule="112x15,160x15,224x15",
                seed=0,
                num_workers=workers,
            ) as loader:
                for _ in range(45):
                    for batch in loader:
                        size = batch[0].shape[-1]
                        time.sleep(0.012 * (size / 112) ** 2)
                        steps.append((size, time.perf_counter() - start_s))
            results.took.setdefault(str(workers), []).append(time.perf_counter() - start_s)
            if workers != "auto":
                continue
            since = 0.0
            for size, of_size in groupby(steps, key=lambda step: step[0]):
                ends = [end for _, end in of_size]
                seconds = settling_s([end - since for end in ends])
                results.settled.setdefault(size, []).append(seconds)
                since = ends[-1]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="image folder with one sub-folder per class")
    parser.add_argument(
        "--only", default="", help="run only workloads whose name contains this text"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows = []
    for name, (build, make_step) in trainings(options.folder).items():
        if options.only in name:
            rows.append(row := measure(name, build, make_step))
            print(f"{name}: best with {row.best} workers, {row.rate:.1f} steps/s", flush=True)
            for start, started in row.started.items():
                print(f"    from {start:2}: {started}")
    whole = progressive(options.folder) if options.only in "progressive" else Progressive()
    took = whole.took
    if took:
        least = min(statistics.median(times) for name, times in took.items() if name != "auto")
        for name, times in took.items():
            median = statistics.median(times)
            print(
                f"progressive, {name:4} workers: {median:.1f} s, {least / median:.3f} of the best"
            )
    for size, seconds in whole.settled.items():
        print(
            f"progressive, {size} px: within 5% of its steady rate after "
            f"{statistics.median(seconds):.0f} s ({min(seconds):.0f} to {max(seconds):.0f})"
        )
    if options.json:
        results = {
            "machine": machine(),
            "rows": [asdict(row) for row in rows],
            "progressive": asdict(whole),
        }
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
