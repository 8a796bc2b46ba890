"""Print the results of `cache_accuracy.py` as Markdown tables.

    python benchmarks/cache_accuracy_table.py result.json ...

Differences are paired by seed: the run on copies minus the run of the same seed on originals. Their
95% interval is Student's, with one degree of freedom less than there are seeds. If the interval
contains 0, no effect is proven, and the effect may be as large as either end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from report import table
from scipy import stats

ORIGINALS = "originals"

Results = dict[str, Any]
Runs = dict[int, Results]  # by seed
Figure = Callable[[Results], float]


class Interval(NamedTuple):
    """A mean and the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        # A zero added to a rounded -0.0 makes it 0.0.
        middle, low, high = (f"{round(value, digits) + 0.0:+.{digits}f}" for value in self)
        return f"{middle} ({low} to {high})"


def interval(values: list[float]) -> Interval:
    """95% interval of the mean of at least two independent values."""
    middle = mean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return Interval(middle, middle - half, middle + half)


def by_arm(results: Results) -> dict[str, Runs]:
    """Runs by arm and seed."""
    arms: dict[str, Runs] = {arm: {} for arm in results["settings"]["arms"]}
    for run in sorted(results["runs"], key=lambda run: run["seed"]):
        arms[run["arm"]][run["seed"]] = run
    return arms


def points(judged_on: str) -> Figure:
    """Figure: final top-1 accuracy in percent on the given images."""
    return lambda run: 100 * float(run["on"][judged_on]["top1"])


def last_points(run: Results) -> float:
    """Top-1 accuracy on the originals in percent, mean of the last epochs."""
    return 100 * mean(epoch["top1"] for epoch in run["judged"])


def last_loss(run: Results) -> float:
    """Loss on the originals, mean of the last epochs."""
    return mean(epoch["loss"] for epoch in run["judged"])


def columns(runs: Runs, base: Runs, figure: Figure, digits: int) -> list[str]:
    """Cells: mean and deviation over seeds, and the difference from the originals."""
    values = [figure(run) for run in runs.values()]
    cell = f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"
    if runs is base:
        return [cell, ""]
    return [cell, difference(runs, figure, base, figure).text(digits)]


def compared(runs: Runs, figure: Figure, base: Runs, base_figure: Figure) -> list[str]:
    """Cells: mean over seeds, and the difference from another figure of the originals."""
    middle = mean(map(figure, runs.values()))
    return [f"{middle:.2f}", difference(runs, figure, base, base_figure).text(2)]


def difference(runs: Runs, figure: Figure, base: Runs, base_figure: Figure) -> Interval:
    """Interval of the difference from the runs on originals, paired by seed."""
    shared = [seed for seed in runs if seed in base]
    return interval([figure(runs[seed]) - base_figure(base[seed]) for seed in shared])


def tables(results: Results) -> str:
    """Tables: evaluated on the originals, and evaluated on copies."""
    arms = by_arm(results)
    base, settings = arms[ORIGINALS], results["settings"]
    arms = {arm: runs for arm, runs in arms.items() if len(set(runs) & set(base)) > 1}
    if not arms:
        raise SystemExit("an interval needs two seeds")
    train, val = settings["data"]["train"], settings["data"]["val"]
    epochs = settings["judged_epochs"]
    main_rows = [
        [
            arm,
            len(runs),
            *columns(runs, base, points(ORIGINALS), 2),
            *columns(runs, base, last_points, 2),
            *columns(runs, base, last_loss, 4),
        ]
        for arm, runs in arms.items()
    ]
    last = f"of the last {epochs} epochs"
    headers = [
        "trained on",
        "seeds",
        "top-1 %, ± over seeds",
        "difference (95%)",
        f"top-1 % {last}",
        "difference (95%)",
        f"loss {last}",
        "difference (95%)",
    ]
    plain = points(ORIGINALS)
    judged_rows = [
        [
            kind,
            *compared(base, points(kind), base, plain),
            *compared(runs, points(kind), base, plain),
        ]
        for kind, runs in arms.items()
        if runs is not base
    ]
    about = (
        f"{settings['folder']}: {train['images']} images of {train['classes']} classes to train "
        f"on, {val['images']} for evaluation; {settings['model']['name']}, "
        f"{settings['recipe']['schedule']}"
    )
    judged_headers = [
        "evaluated on",
        "trained on originals, top-1 %",
        "difference (95%)",
        "trained on the same copies, top-1 %",
        "difference (95%)",
    ]
    return "\n\n".join(
        (
            about,
            table(main_rows, headers, markdown=True),
            table(judged_rows, judged_headers, markdown=True),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="results file of cache_accuracy.py")
    options = parser.parse_args()
    for path in options.results:
        print(tables(json.loads(path.read_text())), end="\n\n")


if __name__ == "__main__":
    main()
