"""`feedline.tune` against a full grid: is what it finds as fast, with how few workers, how soon?

    python benchmarks/tuning.py FOLDER [--json FILE] [--only NAME] [--rounds 3]

Each workload is a training whose step takes a given time on no core, as on a GPU, or computes on a
core of the CPU where its name says so, in a process of its own. First `feedline.tune` searches.
Then every cell of a grid of workers and prefetch gets a loader of its own, built anew, and is
counted for some seconds behind a warm-up. At last the tuned setting and the grid's best take turns,
three times over, and the median of the ratios counts.

With `--rounds` all of that is done so often, and a line for each workload has medians with their
ranges: one run on a machine that does other things as well says little.

Workers that were needed: the fewest in the grid whose rate is within 3% of the best.
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
from adapting import Computed, Far, Slept, Training
from report import machine
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import feedline
from feedline.tuning.tuning_result import TuningResult

_CREWS = (1, 2, 3, 4, 6, 8)
_WARM_S, _CELL_S, _TURN_S, _TURNS = 1.0, 3.0, 3.0, 3
_ALIKE = 0.03


class Heavy(Dataset[torch.Tensor]):
    """A transform of the user's own that computes."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, number: int) -> torch.Tensor:
        image = np.random.default_rng(number).random((96, 96, 3), np.float32)
        for _ in range(6):
            image = np.sqrt(image * 0.5 + np.roll(image, 1, axis=0) * 0.5)
        return torch.from_numpy(image)


class Uneven(Dataset[torch.Tensor]):
    """One sample in sixty is waited for twenty times as long."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> torch.Tensor:
        rare = random.Random(number).random() < 1 / 60
        time.sleep(0.04 if rare else 0.002)
        return torch.zeros(3, 64, 64, dtype=torch.uint8)


class Tiny(Dataset[torch.Tensor]):
    """Hardly any work."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.tensor([number])


_Build = Callable[..., Any]
"""Builds a loader of so many workers, None for as many as it begins with, and that prefetch."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training.

    Args:
        build: a loader; of photographs also with pieces of another size.
        step_ms: a step's time.
        prefetch: depths of the grid.
        cores: that the process may use; None for all.
        computes: the step takes its time on a core.
    """

    build: _Build
    step_ms: float
    prefetch: tuple[int, ...]
    cores: int | None = None
    computes: bool = False


def workloads(folder: Path, cache: Path) -> dict[str, Workload]:
    """All, by name."""

    def photographs(root: Path, size: int) -> _Build:
        def build(workers: int | None, prefetch: int, task_ms: float | None = None) -> Any:
            return feedline.DataLoader(
                feedline.ImageFolder(root, transform=feedline.TrainCrop()),
                32,
                image_size=size,
                shuffle=True,
                seed=0,
                num_workers="auto" if workers is None else workers,
                prefetch=prefetch,
                task_ms=task_ms,
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
                prefetch_factor=prefetch,
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
                prefetch_factor=prefetch,
                persistent_workers=True,
            )

        return build

    rows, whole = (3, 6), (2, 4, 8)
    return {
        "decoding 224 px": Workload(build=photographs(folder, 224), step_ms=5, prefetch=rows),
        "decoding 112 px": Workload(build=photographs(folder, 112), step_ms=25, prefetch=rows),
        "the step": Workload(build=photographs(folder, 224), step_ms=120, prefetch=rows),
        "a cache of 128 px": Workload(build=photographs(cache, 112), step_ms=4, prefetch=rows),
        "a transform": Workload(build=samples(Heavy(), 16), step_ms=10, prefetch=whole),
        "a slow reader": Workload(build=samples(Far(12), 8), step_ms=30, prefetch=whole),
        "uneven samples": Workload(build=samples(Uneven(), 8), step_ms=15, prefetch=whole),
        "tiny samples": Workload(build=samples(Tiny(), 64), step_ms=2, prefetch=whole),
        "one core": Workload(build=photographs(folder, 112), step_ms=15, prefetch=rows, cores=1),
        "two cores": Workload(build=photographs(folder, 160), step_ms=22, prefetch=rows, cores=2),
        "a step on a core": Workload(
            build=photographs(folder, 112), step_ms=30, prefetch=rows, computes=True
        ),
        "torch, a slow reader": Workload(build=torchs(Far(12), 8), step_ms=30, prefetch=whole),
        "torch, a transform": Workload(build=torchs(Heavy(), 16), step_ms=10, prefetch=whole),
    }


@dataclass
class Row:
    """What was measured of a workload.

    Args:
        name: of it.
        tuned: what was found,
        tuned_s: and in how many seconds.
        reason: that the search gave.
        grid: steps per second, by "workers x prefetch",
        grid_s: and in how many seconds all were counted.
        best: the grid's best,
        needed: and the fewest workers within 3% of it.
        ratios: of the tuned setting over the grid's best, turn by turn.
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
        """Of the tuned setting over the best."""
        return median(self.ratios)


def measured(name: str, folder: Path, cache: Path) -> Row:
    """Tune, count the grid, and let both take turns."""
    work = workloads(folder, cache)[name]
    if work.cores is not None:
        os.sched_setaffinity(0, set(list(os.sched_getaffinity(0))[: work.cores]))
    torch.set_num_threads(1)
    step = Computed(work.step_ms) if work.computes else Slept(work.step_ms)

    def rate(seconds: float, *setting: float | None) -> float:
        with _closing(work.build(*setting)) as loader:
            training = Training(loader, step)
            training.rate(_WARM_S)
            return training.rate(seconds)

    with _closing(work.build(None, work.prefetch[0])) as loader:
        found: TuningResult = feedline.tune(loader, lambda batch: step())
    setting = found.setting
    assert setting is not None, "the budget is long enough"
    pieces = () if setting.task_ms is None else (setting.task_ms,)
    tuned = (setting.workers, setting.prefetch, *pieces)
    row = Row(name, asdict(setting), found.seconds, found.phases[0].reason)
    begun = time.perf_counter()
    for workers, prefetch in itertools.product(_CREWS, work.prefetch):
        row.grid[f"{workers} x {prefetch}"] = rate(_CELL_S, workers, prefetch)
    row.grid_s = time.perf_counter() - begun
    row.best = max(row.grid, key=lambda cell: row.grid[cell])
    fast = [cell for cell, found in row.grid.items() if found >= (1 - _ALIKE) * row.grid[row.best]]
    row.needed = min(int(cell.split(" x ")[0]) for cell in fast)
    best = tuple(int(part) for part in row.best.split(" x "))
    for _ in range(_TURNS):
        own = rate(_TURN_S, *tuned)
        row.ratios.append(own / rate(_TURN_S, *best))
    return row


class _closing:
    """A loader, closed at the end if it is feedline's."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __enter__(self) -> Any:
        return self._loader

    def __exit__(self, *_: object) -> None:
        if hasattr(self._loader, "close"):
            self._loader.close()


def _told(send: Any, name: str, folder: Path, cache: Path) -> None:
    warnings.simplefilter("ignore")  # torch's advice on the number of workers
    # Else torch's workers would be spawned, too, and each would import torch anew.
    multiprocessing.set_start_method("fork", force=True)
    send.send(measured(name, folder, cache))


def apart(name: str, folder: Path, cache: Path) -> Row:
    """The same in a process of its own, whose affinity may be another."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_told, args=(send, name, folder, cache))
    process.start()
    send.close()
    try:
        row: Row = receive.recv()
    finally:
        process.join()
    return row


def lines(rows: Iterable[Row]) -> list[str]:
    """A table."""
    said = [
        f"{'workload':<22}{'tuned':>12}{'s':>6}{'best':>8}{'needed':>8}{'grid s':>8}{'share':>7}"
        f"{'ratio':>7}  (range)"
    ]
    for row in rows:
        tuned = f"{row.tuned['workers']} x {row.tuned['prefetch']}"
        said.append(
            f"{row.name:<22}{tuned:>12}{row.tuned_s:6.1f}{row.best:>8}{row.needed:8}"
            f"{row.grid_s:8.0f}{row.tuned_s / row.grid_s:7.2f}{row.ratio:7.3f}"
            f"  ({min(row.ratios):.3f}-{max(row.ratios):.3f})"
        )
    return said


def medians(rows: Sequence[Row]) -> str:
    """Rounds of one workload, in a line."""

    def said(values: list[float], digits: int) -> str:
        low, high = min(values), max(values)
        return f"{median(values):.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"

    crews = [float(row.tuned["workers"]) for row in rows]
    return (
        f"{rows[0].name:<22} workers {said(crews, 0)}, needed "
        f"{said([float(row.needed) for row in rows], 0)}, tuned in "
        f"{said([row.tuned_s for row in rows], 1)} s, share of the grid's time "
        f"{said([row.tuned_s / row.grid_s for row in rows], 2)}, of the best "
        f"{said([ratio for row in rows for ratio in row.ratios], 3)}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="image folder with one sub-folder per class")
    parser.add_argument(
        "--only", default="", help="run only workloads whose name contains this text"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often all is done")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="feedline-tuning-") as scratch:
        cache = Path(scratch) / "cache"
        feedline.build_cache(options.folder, cache, sizes=[128])
        for _, name in itertools.product(range(options.rounds), workloads(options.folder, cache)):
            if options.only in name:
                rows.append(apart(name, options.folder, cache))
                print(lines(rows[-1:])[1], flush=True)
    print("\n".join(lines(rows)))
    if options.rounds > 1:
        for name in dict.fromkeys(row.name for row in rows):
            print(medians([row for row in rows if row.name == name]))
    if options.json:
        found = {"machine": machine(), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
