"""A crew that changes by itself against crews that do not: how fast a training gets, and how soon.

    python benchmarks/adapting.py FOLDER [--json FILE] [--only NAME]

A training is a loop whose step takes a given time on no core, as on a GPU. First it runs with each
fixed number of workers, each for some seconds behind a warm-up; the best of these is what there is
to reach. Then it begins with one worker, and with four times too many, and `adapts`: a row says
after how many seconds the crew was changed last, with how many workers, and the rate from 30 s on
as a share of the best. Fixed crews and those that adapt take turns in one process. Where batches
come unevenly, fixed crews have the usual number of batches ahead, and the share may be above 1.

The last row is a progressive run of the folder's photographs, whole: `num_workers="auto"` over the
best fixed crew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from report import machine
from torch.utils.data import Dataset

import feedline
from feedline.system import usable_cores

_CREWS = (1, 2, 3, 4, 6, 8)
_WARM_S, _FIXED_S, _LEARN_S, _JUDGED_S = 2.0, 6.0, 30.0, 10.0


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


@dataclass
class Row:
    """What was measured of one training.

    Args:
        name: of it.
        best: its quickest fixed crew,
        rate: and its steps per second.
        fixed: steps per second of each.
        started: crews that adapted, by the number they began with: when the crew was last changed,
            in seconds, its workers then, and its rate as a share of the best.
    """

    name: str
    best: int
    rate: float
    fixed: dict[int, float]
    started: dict[int, tuple[float, int, float]] = field(default_factory=dict)


def trainings(folder: Path) -> dict[str, tuple[Callable[[int], Any], float]]:
    """How a loader of so many workers is built, and how long a step takes, in ms."""

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
            Far(ms), 8, shuffle=True, seed=0, num_workers=workers
        )

    def uneven(workers: int) -> Any:
        data = Far(50, slow_in=20)
        return feedline.DataLoader(data, None, shuffle=True, num_workers=workers)

    return {
        "photographs at 112 px, a step of 5 ms: bound by decoding": (images(112), 5),
        "photographs at 112 px, a step of 30 ms": (images(112), 30),
        "photographs at 224 px, a step of 100 ms: bound by the step": (images(224), 100),
        "samples of a server, a step of 20 ms": (far(10), 20),
        "whole batches, one in twenty for ten times as long, a step of 40 ms": (uneven, 40),
        "samples of a slow server, a step of 100 ms": (far(30), 100),
    }


class Training:
    """Steps over a loader, pass after pass."""

    def __init__(self, loader: Any, step_ms: float) -> None:
        self.loader, self._step_s = loader, step_ms / 1000
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
            time.sleep(self._step_s)
            steps += 1
        return steps / (time.perf_counter() - begun)


def measured(name: str, build: Callable[[int], Any], step_ms: float) -> Row:
    """A training with each crew, and with those that adapt."""
    fixed = {}
    for workers in _CREWS:
        with build(workers) as loader:
            training = Training(loader, step_ms)
            training.rate(_WARM_S)
            fixed[workers] = training.rate(_FIXED_S)
    best = max(fixed, key=lambda workers: fixed[workers])
    row = Row(name, best, fixed[best], fixed)
    for start in sorted({1, min(4 * best, 16)}):
        with build(start) as loader:
            training = Training(loader, step_ms)
            training.rate(_WARM_S)  # workers start; only then is there a training to adapt to
            loader.adapts = True
            begun, changed = time.perf_counter(), 0.0
            crew = loader.num_workers
            while time.perf_counter() - begun < _LEARN_S:
                training.rate(0.2)
                if loader.num_workers != crew:
                    crew, changed = loader.num_workers, time.perf_counter() - begun
            share = training.rate(_JUDGED_S) / row.rate
            print(*(f"      from {start}: {each}" for each in loader.adaptations), sep="\n")
            row.started[start] = changed, loader.num_workers, share
    return row


def progressive(folder: Path, rounds: int = 3) -> dict[str, list[float]]:
    """Seconds of a whole run of three sizes, by the crew: fixed ones and "auto"."""
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        for workers in ("auto", *sorted({1, usable_cores(), 2 * usable_cores()})):
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
                        time.sleep(0.012 * (batch[0].shape[-1] / 112) ** 2)
            took.setdefault(str(workers), []).append(time.perf_counter() - begun)
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="of photographs, a folder for each class")
    parser.add_argument("--only", default="", help="trainings that have this in their names")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    rows = []
    for name, (build, step_ms) in trainings(options.folder).items():
        if options.only in name:
            rows.append(row := measured(name, build, step_ms))
            print(f"{name}: best with {row.best} workers, {row.rate:.1f} steps/s", flush=True)
            for start, (changed, crew, share) in row.started.items():
                print(f"    from {start:2}: {crew} workers after {changed:.1f} s, {share:.3f}")
    took = progressive(options.folder) if options.only in "progressive" else {}
    if took:
        least = min(statistics.median(times) for name, times in took.items() if name != "auto")
        for name, times in took.items():
            median = statistics.median(times)
            print(
                f"progressive, {name:4} workers: {median:.1f} s, {least / median:.3f} of the best"
            )
    if options.json:
        found = {"machine": machine(), "rows": [asdict(row) for row in rows], "progressive": took}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
