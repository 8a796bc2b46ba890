"""Compare the setting found by `feedline.tune` with a full grid search: speed, workers and time.

    python benchmarks/tuning.py FOLDER [--json FILE] [--only NAME] [--rounds 3]

Workloads: each is a training in a new process whose step sleeps, as if a GPU computed, or computes
on a CPU core (named "on a core"). Method: `feedline.tune` searches first. Then every cell of a grid
of workers and prefetch is measured with a new loader for a few seconds after a warm-up. Finally the
tuned setting and the best cell are measured alternately three times; the median ratio counts.

`--rounds` repeats all of this and prints medians with ranges per workload; a single run on a shared
machine has little meaning. Columns: "needed" is the smallest number of workers in the grid within
3% of the best rate; "share" is the tuning time over the grid's time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from adapting import ComputingStep, RemoteSamples, SleepingStep, Training
from report import machine
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import feedline
from feedline.tuning.result import TuningResult

_CREWS = (0, 1, 2, 3, 4, 6, 8)
_WARM_S, _CELL_S, _TURN_S, _TURNS = 1.0, 3.0, 3.0, 3
_ALIKE = 0.03


class Heavy(Dataset[torch.Tensor]):
    """User-defined transform that computes."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, number: int) -> torch.Tensor:
        image = np.random.default_rng(number).random((96, 96, 3), np.float32)
        for _ in range(6):
            image = np.sqrt(image * 0.5 + np.roll(image, 1, axis=0) * 0.5)
        return torch.from_numpy(image)


class Uneven(Dataset[torch.Tensor]):
    """One sample in sixty takes twenty times as long."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> torch.Tensor:
        rare = random.Random(number).random() < 1 / 60
        time.sleep(0.04 if rare else 0.002)
        return torch.zeros(3, 64, 64, dtype=torch.uint8)


class Tiny(Dataset[torch.Tensor]):
    """Samples that cost almost nothing."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number])


_Build = Callable[..., Any]
"""Builds a loader from a number of workers (None for the initial one) and prefetch."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training.

    Args:
        build: builds a loader; for photographs also with another task size.
        step_ms: duration of a step.
        prefetch: prefetch values of the grid.
        cores: number of cores that the process may use; None for all.
        computes: the step computes on a core.
    """

    build: _Build
    step_ms: float
    prefetch: tuple[int, ...]
    cores: int | None = None
    computes: bool = False


def workloads(folder: Path, cache: Path) -> dict[str, Workload]:
    """All workloads, by name."""

    def photographs(root: Path, size: int) -> _Build:
        def build(workers: int | None, prefetch: int, task_ms: float | None = None) -> Any:
            return feedline.DataLoader(
                feedline.ImageFolder(root, transform=feedline.TrainCrop()),
                32,
                image_size=size,
                shuffle=True,
                seed=0,
                num_workers="auto" if workers is None else workers,
                prefetch=None if workers == 0 else prefetch,
                task_ms=None if workers == 0 else task_ms,
            )

        return build

    def samples(dataset: Any, rows: int, **options: Any) -> _Build:
        def build(workers: int | None, prefetch: int) -> Any:
            return feedline.DataLoader(
                dataset,
                rows,
                shuffle=True,
                seed=0,
                num_workers="auto" if workers is None else workers,
                prefetch_factor=None if workers == 0 else prefetch,
                **options,
            )

        return build

    def torchs(dataset: Any, rows: int) -> _Build:
        def build(workers: int | None, prefetch: int) -> Any:
            return TorchDataLoader(
                dataset,
                rows,
                shuffle=True,
                num_workers=2 if workers is None else workers,
                prefetch_factor=None if workers == 0 else prefetch,
                persistent_workers=workers != 0,
            )

        return build

    rows, whole = (3, 6), (2, 4, 8)
    return {
        "decoding 224 px": Workload(build=photographs(folder, 224), step_ms=5, prefetch=rows),
        "decoding 112 px": Workload(build=photographs(folder, 112), step_ms=25, prefetch=rows),
        "the step": Workload(build=photographs(folder, 224), step_ms=120, prefetch=rows),
        "a cache of 128 px": Workload(build=photographs(cache, 112), step_ms=4, prefetch=rows),
        "a transform": Workload(build=samples(Heavy(), 16), step_ms=10, prefetch=whole),
        "a slow reader": Workload(build=samples(RemoteSamples(12), 8), step_ms=30, prefetch=whole),
        "uneven samples": Workload(build=samples(Uneven(), 8), step_ms=15, prefetch=whole),
        "tiny samples": Workload(build=samples(Tiny(), 64), step_ms=2, prefetch=whole),
        "one core": Workload(build=photographs(folder, 112), step_ms=15, prefetch=rows, cores=1),
        "two cores": Workload(build=photographs(folder, 160), step_ms=22, prefetch=rows, cores=2),
        "a step on a core": Workload(
            build=photographs(folder, 112), step_ms=30, prefetch=rows, computes=True
        ),
        "torch, a slow reader": Workload(
            build=torchs(RemoteSamples(12), 8), step_ms=30, prefetch=whole
        ),
        "torch, a transform": Workload(build=torchs(Heavy(), 16), step_ms=10, prefetch=whole),
    }


@dataclass
class Row:
    """Results of a workload.

    Args:
        name: its name.
        tuned: setting found by the search.
        tuned_s: seconds of the search.
        reason: reason given by the search.
        grid: steps per second, by "workers x prefetch".
        grid_s: seconds of the grid search.
        best: best cell of the grid.
        needed: smallest number of workers within 3% of the best cell.
        ratios: tuned setting over the best cell, per turn.
    """

    name: str
    tuned: dict[str, Any]
    tuned_s: float
    reason: str
    grid: dict[str, float] = field(default_factory=dict)
    grid_s: float = 0.0
    best: str = ""
    needed: int = 0
    ratios: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Tuned setting over the best cell."""
        return median(self.ratios)


def measure(name: str, folder: Path, cache: Path) -> Row:
    """Tune, measure the grid, then measure both alternately."""
    work = workloads(folder, cache)[name]
    if work.cores is not None:
        os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[: work.cores]))
    torch.set_num_threads(1)
    step = ComputingStep(work.step_ms) if work.computes else SleepingStep(work.step_ms)

    def rate(seconds: float, *setting: float | None) -> float:
        with _closing(work.build(*setting)) as loader:
            training = Training(loader, step)
            training.rate(_WARM_S)
            return training.rate(seconds)

    with _closing(work.build(None, work.prefetch[0])) as loader:
        result: TuningResult = feedline.tune(loader, lambda batch: step())
    setting = result.setting
    assert setting is not None, "the budget is long enough"
    pieces = () if setting.task_ms is None else (setting.task_ms,)
    tuned = (setting.workers, setting.prefetch, *pieces)
    row = Row(name, asdict(setting), result.seconds, result.phases[0].reason)
    start_s = time.perf_counter()
    for workers, prefetch in itertools.product(_CREWS, work.prefetch):
        if not workers and prefetch != work.prefetch[0]:
            continue
        row.grid[f"{workers} x {prefetch}"] = rate(_CELL_S, workers, prefetch)
    row.grid_s = time.perf_counter() - start_s
    row.best = max(row.grid, key=lambda cell: row.grid[cell])
    fast = [cell for cell, speed in row.grid.items() if speed >= (1 - _ALIKE) * row.grid[row.best]]
    row.needed = min(int(cell.split(" x ")[0]) for cell in fast)
    best = tuple(int(part) for part in row.best.split(" x "))
    for _ in range(_TURNS):
        own = rate(_TURN_S, *tuned)
        row.ratios.append(own / rate(_TURN_S, *best))
    return row


class _closing:
    """Context that closes a loader of feedline."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __enter__(self) -> Any:
        return self._loader

    def __exit__(self, *_: object) -> None:
        if hasattr(self._loader, "close"):
            self._loader.close()


def _measure_in_process(send: Any, name: str, folder: Path, cache: Path) -> None:
    warnings.simplefilter("ignore")  # torch's advice on the number of workers
    # Otherwise torch's workers would be spawned, too, and each would import torch again.
    multiprocessing.set_start_method("fork", force=True)
    send.send(measure(name, folder, cache))


def in_new_process(name: str, folder: Path, cache: Path) -> Row:
    """Measure in a new process, whose CPU affinity may differ."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measure_in_process, args=(send, name, folder, cache))
    process.start()
    send.close()
    try:
        row: Row = receive.recv()
    finally:
        process.join()
    return row


def lines(rows: Iterable[Row]) -> list[str]:
    """The rows as a table."""
    text = [
        f"{'workload':<22}{'tuned':>12}{'s':>6}{'best':>8}{'needed':>8}{'grid s':>8}{'share':>7}"
        f"{'ratio':>7}  (range)"
    ]
    for row in rows:
        tuned = f"{row.tuned['workers']} x {row.tuned['prefetch']}"
        text.append(
            f"{row.name:<22}{tuned:>12}{row.tuned_s:6.1f}{row.best:>8}{row.needed:8}"
            f"{row.grid_s:8.0f}{row.tuned_s / row.grid_s:7.2f}{row.ratio:7.3f}"
            f"  ({min(row.ratios):.3f}-{max(row.ratios):.3f})"
        )
    return text


def medians(rows: Sequence[Row]) -> str:
    """One line for several rounds of a workload."""

    def span(values: list[float], digits: int) -> str:
        low, high = min(values), max(values)
        return f"{median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"

    workers = [float(row.tuned["workers"]) for row in rows]
    return (
        f"{rows[0].name:<22} workers {span(workers, 0)}, needed "
        f"{span([float(row.needed) for row in rows], 0)}, tuned in "
        f"{span([row.tuned_s for row in rows], 1)} s, share of the grid's time "
        f"{span([row.tuned_s / row.grid_s for row in rows], 2)}, of the best "
        f"{span([ratio for row in rows for ratio in row.ratios], 3)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="image folder with one sub-folder per class")
    parser.add_argument(
        "--only", default="", help="run only workloads whose name contains this text"
    )
    parser.add_argument("--rounds", type=int, default=1, help="number of repetitions")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="feedline-tuning-") as scratch:
        cache = Path(scratch) / "cache"
        feedline.build_cache(options.folder, cache, sizes=[128])
        for _, name in itertools.product(range(options.rounds), workloads(options.folder, cache)):
            if options.only in name:
                rows.append(in_new_process(name, options.folder, cache))
                print(lines(rows[-1:])[1], flush=True)
    print("\n".join(lines(rows)))
    if options.rounds > 1:
        for name in dict.fromkeys(row.name for row in rows):
            print(medians([row for row in rows if row.name == name]))
    if options.json:
        results = {"machine": machine(), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
