"""Measure the cost of a change of image size, and of an epoch boundary.

    python benchmarks/size_switch.py FOLDER --schedule 112x3,160x3,224x3
    python benchmarks/size_switch.py FOLDER --paced 1.0

Method: one loader runs a progressive schedule, alternately with a loader at the last size only, for
`--rounds` rounds; the interval between consecutive batches is measured. Prints medians and ranges
over the rounds: the interval at each size change over the median interval of the new size, the
longest interval at an epoch boundary over the median of its size, and the time of an epoch at the
last size in the progressive run over the same epoch alone. Epochs with a size change or the start
of the run count from their second batch for the median, and whole for the time. No process may
start or stop; process ids are compared.

`--paced FACTOR` only measures the progressive run, with a step that sleeps FACTOR times the
loader's time per batch at each size (the mean of a run without steps). Prints the wait in `next`
over the step, at size changes, epoch boundaries and elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import time
from statistics import fmean, median

from report import describe_processor, machine

from feedline import DataLoader, ImageFolder, Schedule, TrainCrop

Intervals = list[tuple[int, list[float]]]


def intervals(loader: DataLoader, step_s: float) -> Intervals:
    """Size and seconds between batches, for each epoch."""
    epochs: Intervals = []
    last = time.perf_counter()
    for _ in range(loader.epochs or 0):
        times = []
        for _ in loader:
            if step_s:
                time.sleep(step_s)
            now = time.perf_counter()
            times.append(now - last)
            last = now
        epochs.append((loader.phase.image_size, times))
    return epochs


def spread(values: list[float]) -> str:
    return f"{median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def paced(loader: DataLoader, factor: float) -> None:
    """Print the waits of a training whose step takes `factor` times the loader's time per batch."""
    means: dict[int, float] = {}
    for size, group in itertools.groupby(intervals(loader, 0), lambda epoch: epoch[0]):
        times = [t for _, ts in group for t in ts[1:]]
        means[size] = sum(times) / len(times)
    loader.set_epoch(0)
    waits: dict[str, list[float]] = {"a switch": [], "an epoch's edge": [], "other batches": []}
    before = None
    for _ in range(loader.epochs or 0):
        batches = iter(loader)
        size = loader.phase.image_size
        for number in range(len(loader)):
            started = time.perf_counter()
            next(batches)
            step = means[size] * factor
            wait = (time.perf_counter() - started) / step
            if number:
                waits["other batches"].append(wait)
            elif before is not None:
                waits["a switch" if size != before else "an epoch's edge"].append(wait)
            time.sleep(step)
        for _ in batches:
            raise AssertionError("more batches than len()")
        before = size
    print("step, ms: " + ", ".join(f"{s} px {1000 * m * factor:.1f}" for s, m in means.items()))
    for name, values in waits.items():
        if values:  # phases of one epoch have no boundaries except size changes
            print(f"wait at {name + ' / step:':25} {spread(values)}, mean {fmean(values):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="image folder with one sub-folder per class")
    parser.add_argument("--schedule", default="112x3,160x3,224x3")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--step-ms", type=float, default=0, help="duration of a sleeping step, in milliseconds"
    )
    parser.add_argument(
        "--paced",
        type=float,
        metavar="FACTOR",
        help="measure waits with steps of this many batch times",
    )
    options = parser.parse_args()
    print(describe_processor(machine()), flush=True)

    data = ImageFolder(options.folder, TrainCrop(scale=(0.25, 1.0)))
    schedule = Schedule.parse(options.schedule)
    last = schedule.phases[-1]

    def started(phases: str) -> DataLoader:
        loader = DataLoader(
            data,
            options.batch_size,
            schedule=phases,
            num_workers=options.workers,
            drop_last=True,
        )
        next(iter(loader))  # start the workers
        loader.set_epoch(0)
        return loader

    if options.paced:
        for _ in range(options.rounds):
            with started(options.schedule) as loader:
                paced(loader, options.paced)
        return
    switches: list[float] = []
    edges: list[float] = []
    ratios: list[float] = []
    for turn in range(options.rounds):
        spent = {}
        for name in ("progressive", "alone") if turn % 2 else ("alone", "progressive"):
            # The same epochs with the same permutation: those of the last phase.
            alone = f"{last.image_size}x{schedule.epochs}"
            with started(options.schedule if name == "progressive" else alone) as loader:
                pids = loader.worker_pids
                epochs = intervals(loader, options.step_ms / 1000)
                assert loader.worker_pids == pids, "a process was started or stopped"
            # Includes the first epoch of the last phase, with the size change.
            spent[name] = median(sum(times) for _, times in epochs[-last.epochs :])
            for (before, _), (size, times) in itertools.pairwise(epochs):
                usual = median(t for s, ts in epochs if s == size for t in ts[1:])
                if before != size:
                    switches.append(times[0] / usual)
                else:
                    edges.append(times[0] / usual)
        ratios.append(spent["progressive"] / spent["alone"])
    print(f"interval at a switch / usual interval of the new size: {spread(switches)}")
    print(f"interval at an epoch's edge / usual interval:          {spread(edges)}")
    print(f"epoch at {last.image_size} px, progressive / alone:                 {spread(ratios)}")


if __name__ == "__main__":
    main()
