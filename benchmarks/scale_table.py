"""Print the results of `scale.py` as tables, and plot them.

python benchmarks/scale_table.py result.json            Markdown
python benchmarks/scale_table.py result.json --plot result.png
"""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from report import spread, table

__all__ = ["picture", "tables"]

OURS, BARE = "feedline_exact", "limit_own"
# Varied quantities, and the axis label of each panel.
AXES = {
    "workers": "worker processes",
    "batch size": "images in a batch",
    "image size": "side of the images, px",
    "index": "images in the index",
}
# Regressors of the slopes: CPU time per image = fixed + slope * this.
LEVER = {
    "batch size": ("CPU ms / batch", lambda value: 1 / value),
    "image size": ("CPU ms / megapixel", lambda value: value * value / 1e6),
}
# Columns of single axes: heading and digits.
FACTS = {
    "enlarged_percent": ("enlarged %", 0),
    "scan_s": ("scan s", 3),
    "order_s": ("order s", 4),
}

Results = dict[str, Any]


def points(results: Results, axis: str) -> list[Results]:
    return [point for point in results["points"] if point["axis"] == axis]


def figures(point: Results, peer: str, name: str) -> list[float]:
    """A figure of a peer over all rounds; empty if it was not measured."""
    return [turn[peer][name] for turn in point["turns"] if peer in turn]


def cores(results: Results, point: Results) -> int:
    """Number of cores that the workers of a point can use."""
    workers = point["value"] if point["axis"] == "workers" else results["settings"]["workers"]
    return min(workers, results["machine"]["usable_cores"])


def core_ms(results: Results, point: Results) -> float:
    """Milliseconds of the used cores per image."""
    return 1000 * cores(results, point) / median(figures(point, OURS, "rate"))


def cpu_ms(point: Results) -> float:
    """CPU milliseconds of all processes per image."""
    return median(figures(point, OURS, "cpu_ms"))


def slopes(measured: list[Results], axis: str) -> list[str]:
    """Slopes relative to the previous value; the first has none."""
    _, lever = LEVER[axis]
    cells = ["-"]
    for before, after in pairwise(measured):
        more = lever(after["value"]) - lever(before["value"])
        cells.append(f"{(cpu_ms(after) - cpu_ms(before)) / more:.2f}")
    return cells


def axis_table(results: Results, axis: str, markdown: bool) -> str:
    """All figures of one axis."""
    measured = points(results, axis)
    facts = [name for name in FACTS if name in measured[0]["turns"][0]]
    compared = bool(figures(measured[0], BARE, "rate"))
    headers = [axis, "images/s", "per core", "core ms / image", "CPU ms / image"]
    if compared:
        headers += ["bare, images/s", "share of bare"]
    headers += [LEVER[axis][0]] if axis in LEVER else []
    headers += ["PSS MB", "first batch s", *[FACTS[name][0] for name in facts]]
    rows = []
    for k, point in enumerate(measured):
        rates = figures(point, OURS, "rate")
        row = [
            f"{point['value']:,}",
            spread(rates, digits=0),
            f"{median(rates) / cores(results, point):.0f}",
            f"{core_ms(results, point):.3f}",
            f"{cpu_ms(point):.3f}",
        ]
        if compared:
            bare = figures(point, BARE, "rate")
            row.append(spread(bare, digits=0))
            row.append(spread([ours / theirs for ours, theirs in zip(rates, bare, strict=True)]))
        if axis in LEVER:
            row.append(slopes(measured, axis)[k])
        row.append(f"{median(figures(point, OURS, 'pss_mb')):.0f}")
        row.append(spread(figures(point, OURS, "first_batch_s"), digits=2))
        for name in facts:
            row.append(f"{median(turn[name] for turn in point['turns']):.{FACTS[name][1]}f}")
        rows.append(row)
    return f"{axis}\n\n{table(rows, headers, markdown=markdown)}\n"


def tables(results: Results, *, markdown: bool = False) -> str:
    """One table per measured axis."""
    return "\n".join(axis_table(results, axis, markdown) for axis in AXES if points(results, axis))


def picture(results: Results, path: Path) -> None:
    """Plot images per second, one panel per axis; bands show the range over the turns."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 7.2), layout="constrained")
    legend = {}
    for panel, (axis, label) in zip(axes.flat, AXES.items(), strict=True):
        measured = points(results, axis)
        panel.set_visible(bool(measured))
        highest = 0.0
        # Okabe-Ito palette, distinguishable with colour blindness; the markers differ, too.
        for peer, name, colour, marker in (
            (OURS, "feedline", "#0072B2", "o"),
            (BARE, "bare processes, the same calls", "#E69F00", "s"),
        ):
            part = [point for point in measured if figures(point, peer, "rate")]
            if part:
                rates = [figures(point, peer, "rate") for point in part]
                values = [point["value"] for point in part]
                low, high = [min(each) for each in rates], [max(each) for each in rates]
                panel.fill_between(values, low, high, color=colour, alpha=0.25, linewidth=0)
                middle = [median(each) for each in rates]
                (legend[name],) = panel.plot(values, middle, marker=marker, color=colour)
                highest = max(highest, *high)
        ticks = [point["value"] for point in measured]
        panel.set_xscale("log", base=10 if axis == "index" else 2)
        panel.set_xticks(ticks, [f"{value:,}" for value in ticks])
        panel.minorticks_off()
        panel.set_xlabel(label)
        panel.set_ylabel("images per second")
        panel.set_ylim(0, 1.08 * highest or 1)
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=2)
    settings, machine = results["settings"], results["machine"]
    figure.suptitle(
        f"{machine['cpu_model']}, {machine['usable_cores']} cores; unless varied: "
        f"{settings['workers']} workers, batches of {settings['batch_size']}, "
        f"{settings['size']} px (index: 128 px copies at 112 px)",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="results file of scale.py")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    options = parser.parse_args()
    results = json.loads(options.result.read_text())
    print(tables(results, markdown=True))
    if options.plot:
        picture(results, options.plot)


if __name__ == "__main__":
    main()
