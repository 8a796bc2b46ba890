"""Compare progressive resizing with training at a fixed size: time and accuracy.

    python benchmarks/progressive_training.py --json result.json
    python benchmarks/progressive_training.py FOLDER --seeds 8 --json result.json
    python benchmarks/progressive_training.py --table result.json        Markdown

FOLDER holds train/ and val/ with class folders; default: the images of `feedline demo-data`. For
each seed `feedline train` runs twice, each time in a new process: with `--schedule`, and at the
schedule's last size for the same number of epochs. Model, images, batch size, learning-rate curve,
seed, and validation at the last size after each epoch are the same. Seeds alternate, and so does
the order of the two runs.

Figures are paired by seed: progressive run minus, or over, fixed run. Intervals are Student's, 95%,
with one degree of freedom less than there are seeds; those of ratios are of their logarithms.
`seconds` is the time of all epochs with validation, including the wait for the first batch and
excluding the start of the program. Accuracy is that of the last epoch. Epochs at the last size are
compared with the epochs of the same number in the fixed run. Target: at most 1.02 times their time.

Caveats: a small network trained from scratch on some hundred images is not ImageNet. The result
depends on the number of epochs: with the same number, progressive resizing sees as many images but
fewer pixels. By the CPU time of a step, the small default model and schedule take about 20 minutes
for 5 seeds on two cores. The interval shows what a difference in accuracy proves; with some hundred
validation images, one image is 0.3 to 1 points.

Results are saved after each run; the same command resumes an interrupted benchmark.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from cache_accuracy_table import Interval, interval
from report import resume_results, save, table

from feedline.cli.demo_set import DemoSet, write_demo_set
from feedline.order.schedule import Schedule
from feedline.system import usable_cores

PACKAGES = ("feedline", "torch", "timm", "numpy", "simplejpeg", "pillow")
PROGRESSIVE, FIXED = "progressive", "fixed"
MOST_LAST = 1.02
"""Target: maximum ratio of the time of an epoch at the last size to that of the fixed run."""

Results = dict[str, Any]
Figure = Callable[[Results], float]
TRAIN = "import sys; from feedline.cli.app import main; main(sys.argv[1:])"


def train(folder: Path, schedule: str, seed: int, settings: Results) -> list[Results]:
    """Train once; return its epochs."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        options = {
            "--schedule": schedule,
            "--seed": seed,
            "--out": Path(scratch) / "out",
            "--json": result,
            **{f"--{name}": settings[name] for name in ("model", "batch-size", "workers")},
        }
        arguments = [str(each) for option in options.items() for each in option]
        finished = subprocess.run(
            [sys.executable, "-c", TRAIN, "train", str(folder), "--device", "cpu", *arguments],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(settings["threads"])},
        )
        if finished.returncode:
            raise SystemExit(finished.stdout + finished.stderr)
        epochs: list[Results] = json.loads(result.read_text())["epochs"]
    return epochs


def epoch_seconds(epoch: Results) -> float:
    """Time from the request of the first batch to the end of the last step."""
    return float(epoch["first_wait_s"] + epoch["seconds"])


def seconds(run: Results) -> float:
    """Time of all epochs with validation."""
    return sum(epoch_seconds(each) + float(each["val_seconds"]) for each in run["epochs"])


def top1(run: Results) -> float:
    """Top-1 accuracy of the last epoch, in percent."""
    return 100.0 * float(run["epochs"][-1]["val_top1"])


def loss(run: Results) -> float:
    """Validation loss of the last epoch."""
    return float(run["epochs"][-1]["val_loss"])


def last_epoch(schedule: Schedule) -> Figure:
    """Figure: mean seconds of an epoch at the schedule's last size."""
    first = schedule.epochs - schedule.phases[-1].epochs
    return lambda run: mean(map(epoch_seconds, run["epochs"][first:]))


def pairs(results: Results) -> list[tuple[Results, Results]]:
    """Runs of each seed that has both."""
    by = {(run["seed"], run["kind"]): run for run in results["runs"]}
    seeds = sorted({seed for seed, _ in by})
    return [
        (by[seed, PROGRESSIVE], by[seed, FIXED])
        for seed in seeds
        if (seed, PROGRESSIVE) in by and (seed, FIXED) in by
    ]


def ratio(both: list[tuple[Results, Results]], figure: Figure) -> Interval:
    """Interval of the geometric mean of progressive over fixed runs."""
    logs = interval([math.log(figure(one) / figure(other)) for one, other in both])
    return Interval(*map(math.exp, logs))


def summary(results: Results, *, markdown: bool = False) -> str:
    """Table of both kinds and their difference, and the target."""
    both, schedule = pairs(results), Schedule.parse(results["settings"]["schedule"])
    if len(both) < 2:
        return f"{len(results['runs'])} runs: an interval needs two seeds with both\n"
    rows = []
    last = last_epoch(schedule)
    for name, figure, digits in (
        ("seconds of all epochs", seconds, 1),
        (f"seconds of an epoch at {schedule.phases[-1].image_size} px", last, 2),
        ("top-1 %, last epoch", top1, 1),
        ("validation loss, last epoch", loss, 3),
    ):
        middle = [f"{mean(map(figure, runs)):.{digits}f}" for runs in zip(*both, strict=True)]
        less = interval([figure(one) - figure(other) for one, other in both]).text(digits)
        of = "{:.3f} ({:.3f} to {:.3f})".format(*ratio(both, figure)) if "sec" in name else ""
        rows.append([name, *middle, less, of])
    heads = [f"{len(both)} seeds", PROGRESSIVE, FIXED, "difference (95%)", "ratio (95%)"]
    bar = ratio(both, last)
    status = "met" if bar.high <= MOST_LAST else "MISSED" if bar.low > MOST_LAST else "not decided"
    return (
        f"{table(rows, heads, markdown=markdown)}\n\n"
        f"target, at most {MOST_LAST} times the time of an epoch at the last size: {status}\n"
    )


def run_all(options: argparse.Namespace, scratch: Path) -> Results:
    folder = options.folder
    if folder is None:
        folder = scratch / "demo-data"
        write_demo_set(folder, DemoSet(val_per_class=32))
    schedule = Schedule.parse(options.schedule)
    fixed = f"{schedule.phases[-1].image_size}x{schedule.epochs}"
    settings = {
        "folder": folder.resolve().name,
        "schedule": str(schedule),
        "fixed": fixed,
        "model": options.model,
        "batch-size": options.batch_size,
        "workers": options.workers,
        "threads": options.threads,
    }
    results = resume_results(options.json, settings, PACKAGES)
    finished = {(run["seed"], run["kind"]) for run in results["runs"]}
    for seed in range(options.seeds):
        kinds = [(PROGRESSIVE, str(schedule)), (FIXED, fixed)]
        for kind, phases in reversed(kinds) if seed % 2 else kinds:
            if (seed, kind) in finished:
                continue
            run = {"seed": seed, "kind": kind, "epochs": train(folder, phases, seed, settings)}
            results["runs"].append(run)
            save(results, options.json)
            print(
                f"seed {seed}  {kind:11}  {seconds(run):6.1f} s  top-1 {top1(run):.1f}", flush=True
            )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="dataset with train/ and val/")
    parser.add_argument(
        "--schedule",
        default="64x8,96x6,128x6",
        help="SIZExEPOCHS,...; the last size is that of the fixed run",
    )
    parser.add_argument("--model", default="resnet10t", help="timm model name")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--threads", type=int, default=usable_cores(), help="torch threads")
    parser.add_argument(
        "--json", type=Path, help="results file; runs that it contains are not repeated"
    )
    parser.add_argument("--table", type=Path, help="print this results file as Markdown")
    options = parser.parse_args()
    if options.table:
        print(summary(json.loads(options.table.read_text()), markdown=True))
        return
    with tempfile.TemporaryDirectory() as scratch:
        print(summary(run_all(options, Path(scratch))))


if __name__ == "__main__":
    main()
