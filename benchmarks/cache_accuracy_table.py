"""What `cache_accuracy.py` found, as Markdown tables.

    python benchmarks/cache_accuracy_table.py result.json ...

Differences are paired by seeds: the run on copies minus the run of the same seed on originals.
Their interval is Student's, 95%, with one degree of freedom less than there are seeds. Where it
holds 0 nothing is proven but its ends: the effect may be as large as either. Seeds of which a run
is missing are left out.
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

Found = dict[str, Any]
Figure = Callable[[Found], float]


class Interval(NamedTuple):
    """A mean and the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        return f"{self.mean:+.{digits}f} ({self.low:+.{digits}f} to {self.high:+.{digits}f})"


def interval(values: list[float]) -> Interval:
    """Of the mean of independent values, at least two."""
    middle = mean(values)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return Interval(middle, middle - half, middle + half)


def by_arm(found: Found) -> dict[str, list[Found]]:
    """The runs of each arm, in the order of their seeds; those of seeds that every arm has."""
    arms: dict[str, dict[int, Found]] = {arm: {} for arm in found["settings"]["arms"]}
    for run in found["runs"]:
        arms[run["arm"]][run["seed"]] = run
    seeds = sorted(set.intersection(*(set(runs) for runs in arms.values())))
    return {arm: [runs[seed] for seed in seeds] for arm, runs in arms.items()}


def points(judged_on: str) -> Figure:
    """Top-1 at the end, in percent."""
    return lambda run: 100 * float(run["on"][judged_on]["top1"])


def last_points(run: Found) -> float:
    """Top-1 on the originals, the mean of the last epochs, in percent."""
    return 100 * mean(epoch["top1"] for epoch in run["judged"])


def last_loss(run: Found) -> float:
    """The loss on the originals, the mean of the last epochs."""
    return mean(epoch["loss"] for epoch in run["judged"])


def columns(runs: list[Found], base: list[Found], figure: Figure, digits: int) -> list[str]:
    """The mean and deviation of a figure over seeds, and its difference from the originals'."""
    values = [figure(run) for run in runs]
    said = f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"
    if runs is base:
        return [said, ""]
    pairs = zip(values, map(figure, base), strict=True)
    return [said, interval([one - other for one, other in pairs]).text(digits)]


def tables(found: Found) -> str:
    """The differences, and what each model reaches on each kind of validation images."""
    arms = by_arm(found)
    base, settings = arms[ORIGINALS], found["settings"]
    if len(base) < 2:
        raise SystemExit("an interval needs two seeds with all their runs")
    train, val = settings["data"]["train"], settings["data"]["val"]
    epochs = settings["judged_epochs"]
    main_rows = [
        [
            arm,
            *columns(runs, base, points(ORIGINALS), 2),
            *columns(runs, base, last_points, 2),
            *columns(runs, base, last_loss, 4),
        ]
        for arm, runs in arms.items()
    ]
    averaged = f"of the last {epochs} epochs"
    headers = [
        "trained on",
        "top-1 %, ± over seeds",
        "difference (95%)",
        f"top-1 % {averaged}",
        "difference (95%)",
        f"loss {averaged}",
        "difference (95%)",
    ]
    judged_rows = [
        [arm, *(f"{mean(map(points(kind), runs)):.2f}" for kind in arms)]
        for arm, runs in arms.items()
    ]
    seconds = sum(run["seconds"] for runs in arms.values() for run in runs)
    about = (
        f"{settings['folder']}: {train['images']} images of {train['classes']} classes to train "
        f"on, {val['images']} to judge on; {settings['model']['name']}, "
        f"{settings['recipe']['schedule']}; {len(base)} seeds, {seconds / 60:.0f} minutes"
    )
    judged_headers = ["trained on", *(f"judged on {kind}, top-1 %" for kind in arms)]
    return "\n\n".join(
        (
            about,
            table(main_rows, headers, markdown=True),
            table(judged_rows, judged_headers, markdown=True),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("results", type=Path, nargs="+", help="what cache_accuracy.py wrote")
    options = parser.parse_args()
    for path in options.results:
        print(tables(json.loads(path.read_text())), end="\n\n")


if __name__ == "__main__":
    main()
