"""Compare what-if predictions of images per second with later measurements.

    python benchmarks/what_if.py FOLDER [--json FILE] [--only NAME]

Method: a training is a loop with a step of fixed duration that sleeps, as if a GPU computed, or
computes on a core. Each of its states (number of workers, cache or none, speed of the step) is
measured three times alternately, and the measurement with the median rate counts; measurements
during which other processes used more than 5% of the cores are repeated. From each state alone, all
states that differ in one setting other than the cache are predicted and compared with their
measurements. The last rows are whole schedules, progressive and of fixed size, predicted from two
steady phases and then run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import machine, table
from torch.utils.data import Dataset

import feedline
from feedline.machine import OtherPrograms
from feedline.profile.bench_loaders import ImageSample
from feedline.system import usable_cores
from feedline.throughput.what_if import Changes, Rates, forecast, what_if
from feedline.tuning.loaders import TunableFeedlineLoader
from feedline.tuning.tune import StepBenchmark

_CEILING_S, _WARM_S, _LEAST_S, _MOST_S = 0.4, 0.3, 1.2, 1.6
_ROUNDS, _TRIES = 3, 4
_REST_S = 60.0
_OTHERS = 0.05  # maximum share of the cores used by other processes
_SIDES = (128, 256)


@dataclass(frozen=True)
class State:
    """Settings of a training that can be changed."""

    workers: int = 1
    cache: int | None = None
    gpu: float = 1.0

    def change_to(self, other: State) -> str:
        """Description of the one setting that differs; "" if none or several do, or the cache."""
        if other.cache != self.cache:
            return ""
        changes = []
        if other.workers != self.workers:
            changes.append(f"workers={other.workers}")
        if other.gpu != self.gpu:
            changes.append(f"gpu={other.gpu / self.gpu:g}")
        return changes[0] if len(changes) == 1 else ""


@dataclass(frozen=True)
class Workload:
    """A training.

    Args:
        loader: builds a loader from a number of workers and an optional cache.
        step: builds a step from a speed-up factor.
        states: states to measure.
        size: image size in pixels; None if samples are not images.
    """

    loader: Callable[[int, Path | None], Any]
    step: Callable[[float], Callable[[Any], object]]
    states: tuple[State, ...]
    size: int | None = None


@dataclass
class Row:
    """A prediction and its measurement.

    Args:
        workload: name of the workload.
        now: the state that the prediction starts from.
        change: the changed setting.
        measured_now: images per second before the change.
        predicted: predicted images per second after it.
        low, high: range of the prediction.
        measured: measured images per second after the change.
        limit: predicted bottleneck.
        needed: measurements that the prediction is based on.
    """

    workload: str
    now: str
    change: str
    measured_now: float
    predicted: float
    low: float
    high: float
    measured: float
    limit: str
    needed: dict[str, Any] = field(default_factory=dict)
    ratio: float = field(init=False)

    def __post_init__(self) -> None:
        self.ratio = self.predicted / self.measured


def sleeping_step(ms: float) -> Callable[[float], Callable[[Any], object]]:
    """A step that sleeps."""
    return lambda gpu: lambda batch: time.sleep(ms / gpu / 1e3)


def computing_step(ms: float) -> Callable[[float], Callable[[Any], object]]:
    """A step that computes on a core."""
    matrix = torch.randn(256, 256)
    times = []
    for _ in range(200):
        start_s = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - start_s)
    rounds = ms / 1e3 / statistics.median(times)

    def faster(gpu: float) -> Callable[[Any], object]:
        def step(batch: Any) -> None:
            for _ in range(round(rounds / gpu)):
                matrix @ matrix

        return step

    return faster


class RemoteSamples(Dataset[torch.Tensor]):
    """Samples fetched from a simulated server: each waits."""

    def __init__(self, ms: float) -> None:
        self.ms = ms

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(self.ms / 1e3)
        return torch.zeros(3, 64, 64, dtype=torch.uint8)


class Uneven(Dataset[torch.Tensor]):
    """Samples without delay, except one in `every`."""

    def __init__(self, every: int, ms: float) -> None:
        self.every, self.ms = every, ms

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(self.ms / 1e3 if number % self.every == 0 else 5e-4)
        return torch.zeros(3, 64, 64, dtype=torch.uint8)


class Transformed(Dataset[torch.Tensor]):
    """Samples in memory with a transform in numpy and torch."""

    def __init__(self) -> None:
        self.pixels = torch.randint(0, 256, (64, 3, 160, 160), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> torch.Tensor:
        image = self.pixels[number % 64].float() / 255
        for _ in range(3):
            image = torch.nn.functional.avg_pool2d(image, 5, stride=1, padding=2)
        return image * 1.2 - 0.1


def tiny() -> Any:
    """A large dataset of images of 8 px."""
    pixels = np.random.default_rng(0).integers(0, 256, (1 << 18, 12, 12, 3), np.uint8)
    return feedline.ImageArray(pixels, np.arange(1 << 18) % 10, transform=feedline.TrainCrop())


def endless(folder: Path) -> Any:
    """An image folder repeated, so that epochs do not end during a measurement."""
    images = feedline.ImageFolder(str(folder), transform=feedline.TrainCrop())
    return ImageSample(images, range(len(images)))


def workloads(folder: Path, caches: Mapping[int, Path]) -> dict[str, Workload]:
    """All workloads, by name."""

    def images(size: int, own: Path | None = None) -> Callable[[int, Path | None], Any]:
        return lambda workers, cache: feedline.DataLoader(
            endless(own or cache or folder),
            32,
            image_size=size,
            shuffle=True,
            seed=0,
            drop_last=True,
            num_workers=workers,
        )

    def of(data: Any, rows: int, **options: Any) -> Callable[[int, Path | None], Any]:
        return lambda workers, cache: feedline.DataLoader(
            data, rows, shuffle=True, seed=0, drop_last=True, num_workers=workers, **options
        )

    crews = (State(1), State(2))
    steps = (*crews, State(2, gpu=0.5), State(2, gpu=2.0))
    return {
        "JPEGs at 224 px, step 8 ms": Workload(
            images(224), sleeping_step(8), (*crews, State(2, gpu=0.25)), 224
        ),
        "JPEGs at 112 px, step 4 ms": Workload(
            images(112),
            sleeping_step(4),
            (*crews, State(2, 128), State(1, 128)),
            112,
        ),
        "JPEGs at 224 px, step 60 ms": Workload(images(224), sleeping_step(60), steps, 224),
        "256 px cache at 224 px, step 10 ms": Workload(
            images(224, caches[256]), sleeping_step(10), steps, 224
        ),
        "128 px cache at 112 px, step 6 ms": Workload(
            images(112, caches[128]), sleeping_step(6), steps, 112
        ),
        "JPEGs at 224 px, step 20 ms on a core": Workload(
            images(224), computing_step(20), steps, 224
        ),
        "transform in torch, step 10 ms": Workload(of(Transformed(), 16), sleeping_step(10), steps),
        "slow reader, step 20 ms": Workload(of(RemoteSamples(4.0), 16), sleeping_step(20), steps),
        "uneven reader, step 20 ms": Workload(
            of(Uneven(240, 120.0), 16), sleeping_step(20), (*steps, State(4))
        ),
        "tiny images, step 3 ms": Workload(
            of(tiny(), 256, image_size=8), sleeping_step(3), steps, 8
        ),
    }


def rest() -> None:
    """Wait until other processes are nearly idle, at most a minute."""
    until = time.monotonic() + _REST_S
    while time.monotonic() < until:
        others = OtherPrograms()
        time.sleep(0.3)
        if others.cores() < _OTHERS * usable_cores():
            return


class WorkloadMeasurements:
    """Measurements of a workload in all of its states.

    Args:
        workload: the workload.
        caches: caches by their resolution.
    """

    def __init__(self, workload: Workload, caches: Mapping[int, Path]) -> None:
        self.workload = workload
        self._measurements: dict[State, list[Rates]] = {}
        self.disturbed = 0
        with ExitStack() as stack:
            loaders: dict[int | None, Any] = {}
            for _ in range(_ROUNDS):
                for state in workload.states:
                    if state.cache not in loaders:
                        cache = None if state.cache is None else caches[state.cache]
                        loader = workload.loader(state.workers, cache)
                        loaders[state.cache] = stack.enter_context(loader)
                    self._measure_undisturbed(state, loaders[state.cache])

    def _measure_undisturbed(self, state: State, loader: Any) -> None:
        for _ in range(_TRIES):
            rest()
            others, rates = OtherPrograms(), self._measure(state, loader)
            if others.cores() < _OTHERS * usable_cores():
                break
            self.disturbed += 1
        self._measurements.setdefault(state, []).append(rates)

    @property
    def states(self) -> dict[State, Rates]:
        """The measurement with the median rate, by state."""
        return {
            state: sorted(looks, key=lambda look: look.now.step_ms)[len(looks) // 2]
            for state, looks in self._measurements.items()
        }

    def _measure(self, state: State, loader: Any) -> Rates:
        rates = run_trial(loader, self.workload.step(state.gpu), state.workers)
        return replace(rates, size=self.workload.size, level_px=state.cache)

    def rows(self, name: str) -> list[Row]:
        """All predictions with their measurements."""
        rows, states = [], self.states
        for now, rates in states.items():
            for then, actual in states.items():
                if change := now.change_to(then):
                    (prediction,) = what_if([rates], Changes.parse(change)).phases
                    state = f"workers={now.workers}" + (f",cache={now.cache}" if now.cache else "")
                    state += f",gpu={now.gpu:g}" if now.gpu != 1 else ""
                    rows.append(
                        Row(
                            workload=name,
                            now=state,
                            change=change,
                            measured_now=prediction.now,
                            predicted=prediction.then,
                            low=prediction.low,
                            high=prediction.high,
                            measured=actual.per_s(actual.now.step_ms),
                            limit=prediction.bottleneck,
                            needed=asdict(rates.now),
                        )
                    )
        return rows


def run_trial(loader: Any, step: Callable[[Any], object], workers: int) -> Rates:
    """Rates of the step alone, and of a loader with a number of workers."""
    tunable = TunableFeedlineLoader(loader)
    tunable.begin(tunable.phases[0])
    setting = replace(tunable.start, workers=workers)
    try:
        benchmark = StepBenchmark(tunable, step)
        benchmark.trial(setting, min_s=_WARM_S, max_s=_WARM_S)
        benchmark.ceiling(_CEILING_S)
        trial = benchmark.trial(setting, min_s=_LEAST_S, max_s=_MOST_S)
        rates = benchmark.rates([trial])
        assert rates is not None, "a trial was measured"
        return rates
    finally:
        tunable.close()


def progressive(folder: Path) -> list[Row]:
    """Whole schedules, predicted from two steady phases and then run."""

    def step(batch: Any) -> None:
        time.sleep(0.024 * (batch[0].shape[-1] / 224) ** 2)

    def loader(schedule: str) -> Any:
        return feedline.DataLoader(
            feedline.ImageFolder(str(folder), transform=feedline.TrainCrop()),
            25,
            schedule=schedule,
            seed=0,
            num_workers=2,
        )

    rates = []
    for size in (112, 224):
        with loader(f"{size}x1000") as steady:
            rates.append(run_trial(steady, step, 2))
    rows = []
    for schedule in ("112x12,224x8", "224x20"):
        rest()
        with loader(schedule) as whole:
            count = len(whole.dataset)
            estimate = forecast(rates, schedule, images=count, workers=2)
            for batch in whole:  # an epoch of warm-up
                step(batch)
            start_s = time.perf_counter()
            for _ in range(whole.epochs - 1):
                for batch in whole:
                    step(batch)
            seconds = time.perf_counter() - start_s
        assert estimate.seconds is not None, "the number of images is known"
        predicted_s = estimate.seconds - count / estimate.phases[0].then
        images = (whole.epochs - 1) * count
        per_s = images / predicted_s
        rows.append(
            Row(
                workload=f"whole schedule {schedule}",
                now="workers=2",
                change="forecast",
                measured_now=estimate.phases[0].now,
                predicted=per_s,
                low=per_s,
                high=per_s,
                measured=images / seconds,
                limit=estimate.phases[0].bottleneck,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="image folder with one sub-folder per class")
    parser.add_argument(
        "--only", default="", help="run only workloads whose name contains this text"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start_s = time.perf_counter()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        caches = {side: Path(scratch) / str(side) for side in _SIDES}
        for side, root in caches.items():
            feedline.build_cache(str(options.folder), str(root), (side,), workers=usable_cores())
        for name, workload in workloads(options.folder, caches).items():
            if options.only in name:
                measured = WorkloadMeasurements(workload, caches)
                rows += _print_table(measured.rows(name))
                if measured.disturbed:
                    print(
                        f"measurements repeated because of other processes: {measured.disturbed}",
                        flush=True,
                    )
        if options.only in "whole schedule":
            rows += _print_table(progressive(options.folder))
    off = [abs(row.ratio - 1) for row in rows]
    worst = max(rows, key=lambda row: abs(row.ratio - 1))
    seconds = time.perf_counter() - start_s
    print(f"{len(rows)} predictions, median off by {statistics.median(off):.1%}; {seconds:.0f} s")
    print(f"worst: {worst.workload}, {worst.now}, {worst.change}: {worst.ratio:.3f}")
    if options.json:
        results = {
            "machine": machine(),
            "median_off": statistics.median(off),
            "worst": asdict(worst),
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(results, indent=1) + "\n")


def _print_table(rows: list[Row]) -> list[Row]:
    cells = [
        (
            row.workload,
            row.now,
            row.change,
            f"{row.measured_now:.0f}",
            f"{row.predicted:.0f}",
            f"{row.measured:.0f}",
            f"{row.ratio:.3f}",
            row.limit,
        )
        for row in rows
    ]
    heads = ["workload", "now", "change", "images/s", "predicted", "measured", "ratio", "bound by"]
    print(table(cells, heads), flush=True)
    return rows


if __name__ == "__main__":
    main()
