"""A crew that changes by itself against crews that do not: how fast a training gets, and how soon.

    python benchmarks/adapting.py FOLDER [--json FILE] [--only NAME]

A training is a loop whose step takes a given time on no core, as on a GPU, or, where its name says
so, computes on a core of the CPU: a fixed number of products of matrices, which take longer where
workers leave no core to it. First it runs with each fixed number of workers, each for some seconds
behind a warm-up; the best of these is what there is to reach. Then it begins with one worker, and
with four times too many, and `adapts` for 30 s; what it has come to then and a loader of the best
fixed crew take turns in one process. A row says after how many seconds the crew was changed last,
with how many workers, and the median of the turns' ratios with their range. Where batches come
unevenly, fixed crews have the usual number of batches ahead, and the ratio may be above 1.

The last row is a progressive run of the folder's photographs, whole: `num_workers="auto"` over the
best fixed crew. Of each of its phases it is also said after how many seconds the rate was within
5% of its steady value, the median of the second half of the phase, for good: the end of the first
second from which on the mean over a second is. The bar is 5 s.
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

_CREWS = (1, 2, 3, 4, 6, 8)
_WARM_S, _FIXED_S, _LEARN_S, _TURN_S, _TURNS = 2.0, 6.0, 30.0, 4.0, 5


class Far(Dataset[torch.Tensor]):
    """Samples of a server: each is waited for.

    Args:
        ms: for how long.
        slow_in: of how many one, in no order, takes ten times as long; 0 for none.
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
class Started:
    """A crew that adapted.

    Args:
        changed_s: when its number was last changed, in seconds.
        workers: the number from then on.
        shares: of the best crew's rate, one of each turn.
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
    """What was measured of one training.

    Args:
        name: of it.
        best: its quickest fixed crew,
        rate: and its steps per second.
        fixed: steps per second of each.
        started: crews that adapted, by the number that they began with.
    """

    name: str
    best: int
    rate: float
    fixed: dict[int, float]
    started: dict[int, Started] = field(default_factory=dict)


def trainings(
    folder: Path,
) -> dict[str, tuple[Callable[[int], Any], Callable[[], Callable[[], None]]]]:
    """How a loader of so many workers is built, and what makes its step."""

    def images(size: int) -> Callable[[int], Any]:
        return lambda workers: feedline.DataLoader(
            feedline.ImageFolder(str(folder), transform=feedline.TrainCrop()),
            32,
            image_size=size,
            shuffle=True,
            seed=0,
            num_workers=workers,
        )

    def far(ms: float) -> Callable[[int], Any]:
        return lambda workers: feedline.DataLoader(
            Far(ms), 8, shuffle=True, seed=0, num_workers=workers, persistent_workers=True
        )

    def uneven(workers: int) -> Any:
        data = Far(50, slow_in=20)
        return feedline.DataLoader(data, None, shuffle=True, num_workers=workers)

    return {
        "photographs at 112 px, a step of 5 ms: bound by decoding": (
            images(112),
            partial(Slept, 5),
        ),
        "photographs at 112 px, a step of 30 ms": (images(112), partial(Slept, 30)),
        "photographs at 224 px, a step of 100 ms: bound by the step": (
            images(224),
            partial(Slept, 100),
        ),
        "samples of a server, a step of 20 ms": (far(10), partial(Slept, 20)),
        "whole batches, one in twenty for ten times as long, a step of 40 ms": (
            uneven,
            partial(Slept, 40),
        ),
        "samples of a slow server, a step of 100 ms": (far(30), partial(Slept, 100)),
        "photographs at 112 px, a step that computes 30 ms on a core": (
            images(112),
            partial(Computed, 30),
        ),
    }


class Slept:
    """A step that takes a time on no core.

    Args:
        ms: how long.
    """

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __call__(self) -> None:
        """Do it."""
        time.sleep(self.ms / 1000)


class Computed:
    """A step of torch's on one thread, with as much work as takes so long on a core of its own.

    Args:
        ms: how long; the number of products is found by timing some, of which the quickest count.
    """

    def __init__(self, ms: float) -> None:
        torch.set_num_threads(1)
        self.ms = ms
        self._left, self._made = torch.randn(128, 128), torch.empty(128, 128)
        self._products = 50
        each_s = min(self._timed() for _ in range(20)) / self._products
        self._products = max(1, round(ms / 1000 / each_s))

    def __call__(self) -> None:
        """Do it."""
        for _ in range(self._products):
            torch.mm(self._left, self._left, out=self._made)

    def _timed(self) -> float:
        begun = time.perf_counter()
        self()
        return time.perf_counter() - begun


class Training:
    """Steps over a loader, pass after pass."""

    def __init__(self, loader: Any, step: Callable[[], None]) -> None:
        self.loader, self._step = loader, step
        self._batches = iter(loader)

    def rate(self, seconds: float) -> float:
        """Steps per second over so many seconds."""
        begun, steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            try:
                next(self._batches)
            except StopIteration:
                self._batches = iter(self.loader)
                continue
            self._step()
            steps += 1
        return steps / (time.perf_counter() - begun)


def measured(
    name: str, build: Callable[[int], Any], making: Callable[[], Callable[[], None]]
) -> Row:
    """A training with each crew, and with those that adapt."""
    step = making()
    fixed = {}
    for workers in _CREWS:
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
            begun, changed = time.perf_counter(), 0.0
            crew = loader.num_workers
            while time.perf_counter() - begun < _LEARN_S:
                training.rate(0.2)
                if loader.num_workers != crew:
                    crew, changed = loader.num_workers, time.perf_counter() - begun
            print(*(f"      from {start}: {each}" for each in loader.adaptations), sep="\n")
            loader.adapts = False
            shares = []
            with build(best) as fixed_loader:
                rival = Training(fixed_loader, step)
                rival.rate(_WARM_S)
                for _ in range(_TURNS):
                    own = training.rate(_TURN_S)
                    shares.append(own / rival.rate(_TURN_S))
            row.started[start] = Started(changed, loader.num_workers, shares)
    return row


def settled_s(ends: Sequence[float]) -> float:
    """After how many seconds the rate is within 5% of its steady value for good.

    Args:
        ends: when each step of a phase ended, in seconds from the phase's beginning.
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
    """What was measured of whole runs.

    Args:
        took: seconds of each run, by the crew: fixed ones and "auto".
        settled: of runs with "auto", seconds from a phase's beginning to its steady rate, by size.
    """

    took: dict[str, list[float]] = field(default_factory=dict)
    settled: dict[int, list[float]] = field(default_factory=dict)


def progressive(folder: Path, rounds: int = 3) -> Progressive:
    """Whole runs of three sizes."""
    found = Progressive()
    for _ in range(rounds):
        for workers in ("auto", *sorted({1, usable_cores(), 2 * usable_cores()})):
            steps: list[tuple[int, float]] = []
            begun = time.perf_counter()
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
                        steps.append((size, time.perf_counter() - begun))
            found.took.setdefault(str(workers), []).append(time.perf_counter() - begun)
            if workers != "auto":
                continue
            since = 0.0
            for size, of_size in groupby(steps, key=lambda step: step[0]):
                ends = [end for _, end in of_size]
                settled = settled_s([end - since for end in ends])
                found.settled.setdefault(size, []).append(settled)
                since = ends[-1]
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="of photographs, a folder for each class")
    parser.add_argument("--only", default="", help="trainings that have this in their names")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    rows = []
    for name, (build, making) in trainings(options.folder).items():
        if options.only in name:
            rows.append(row := measured(name, build, making))
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
        found = {
            "machine": machine(),
            "rows": [asdict(row) for row in rows],
            "progressive": asdict(whole),
        }
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
