"""Print the results of `versus.py` as tables, and plot them.

python benchmarks/versus_table.py result.json --only "originals @224,originals @112"   Markdown
python benchmarks/versus_table.py result.json --plot docs/versus.png

The plot of the README has three tasks, without bare processes:

    python benchmarks/versus_table.py benchmarks/results/versus.json --plot docs/peers.png \\
        --only "originals @224,256 px copies @224,128 px copies @112" --loaders
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import report

__all__ = ["picture", "summary", "table"]

OURS = "feedline_exact"
NO_LOADERS = ("limit", "limit_own", "feedline_scaled", "torch_uint8")
HEADERS = [
    "loader",
    "img/s",
    "range",
    "per core",
    "feedline / it",
    "CPU s / 1000",
    "PSS MB",
    "first batch s",
    "pixels",
]


def ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> list[float]:
    """feedline's rate over a peer's, per round."""
    return [a / b for a, b in zip(ours["rates"], theirs["rates"], strict=True)]


def by_rate(peers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Peers that could run: the limit, feedline, then the others, fastest first."""
    first = {"limit": 0, "limit_own": 1, OURS: 2}
    part = [peer for peer in peers if peer["rates"]]
    return sorted(part, key=lambda peer: (first.get(peer["peer"], 3), -median(peer["rates"])))


def table(task: dict[str, Any], cores: int, markdown: bool = False) -> str:
    """All figures of one task."""
    ours = next((peer for peer in task["peers"] if peer["peer"] == OURS and peer["rates"]), None)
    rows = []
    for peer in by_rate(task["peers"]):
        rate = median(peer["rates"])
        rows.append(
            [
                peer["name"],
                f"{rate:.0f}",
                f"{min(peer['rates']):.0f}-{max(peer['rates']):.0f}",
                f"{rate / cores:.0f}",
                report.spread(ratios(ours, peer)) if ours and peer is not ours else "",
                f"{median(peer['cpu_s']):.2f}",
                f"{max(peer['pss_mb']):.0f}",
                f"{peer['first_batch_s']:.2f}",
                peer["pixels"],
            ]
        )
    for peer in task["peers"]:
        if not peer["rates"]:
            rows.append([peer["name"] or peer["peer"], *[""] * 7, peer["missing"]])
    return f"{task['name']}\n\n{report.table(rows, HEADERS, markdown=markdown)}\n"


def summary(results: dict[str, Any], only: Sequence[str] = (), peers: Sequence[str] = ()) -> str:
    """One row per loader and one column per task: images per second and feedline's ratio.

    Args:
        results: results of `versus.py`.
        only: names of tasks; all if empty.
        peers: keys of loaders; all if empty.
    """
    tasks = list(only) or [task["name"] for task in results["tasks"]]
    names: dict[str, str] = {}
    cells: dict[tuple[str, str], str] = {}
    for task in results["tasks"]:
        part = {peer["peer"]: peer for peer in task["peers"] if peer["rates"]}
        for name, peer in part.items():
            names[name] = peer["name"]
            cells[name, task["name"]] = f"{median(peer['rates']):.0f}"
            if name != OURS:
                cells[name, task["name"]] += f" ({median(ratios(part[OURS], peer)):.2f})"
    rows = [
        [label, *[cells.get((name, task), "") for task in tasks]]
        for name, label in names.items()
        if not peers or name in peers
    ]
    return report.table(rows, ["images per second (feedline / it)", *tasks], markdown=True)


def picture(results: dict[str, Any], path: Path, only: Sequence[str], *, loaders: bool) -> None:
    """Plot images per second, one panel per task; whiskers show the range over the turns.

    Args:
        results: results of `versus.py`.
        path: the PNG file to write.
        only: names of tasks; all if empty.
        loaders: omit bare processes, variants of feedline and hand-written code.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    tasks = [task for task in results["tasks"] if not only or task["name"] in only]
    columns = min(3, len(tasks))
    down = -(-len(tasks) // columns)
    figure, axes = plt.subplots(down, columns, figsize=(5.2 * columns, 3.4 * down), squeeze=False)
    for axis, task in zip(axes.flat, tasks, strict=False):
        part = by_rate(task["peers"])[::-1]
        if loaders:
            part = [peer for peer in part if peer["peer"] not in NO_LOADERS]
        rates = [median(peer["rates"]) for peer in part]
        low = [rate - min(peer["rates"]) for rate, peer in zip(rates, part, strict=True)]
        high = [max(peer["rates"]) - rate for rate, peer in zip(rates, part, strict=True)]
        # Okabe-Ito palette, distinguishable with colour blindness.
        colours = [
            {
                "limit": "#FFFFFF",
                "limit_own": "#FFFFFF",
                OURS: "#0072B2",
                "feedline_scaled": "#56B4E9",
            }.get(peer["peer"], "#999999")
            for peer in part
        ]
        axis.barh(
            [peer["name"] for peer in part],
            rates,
            xerr=[low, high],
            color=colours,
            edgecolor="#000000",
            linewidth=0.6,
            error_kw={"linewidth": 1},
        )
        axis.set_title(f"{task['name']} px")
        axis.set_xlabel("images per second")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes.flat)[len(tasks) :]:
        axis.set_visible(False)
    machine = results["machine"]
    figure.suptitle(
        f"{report.describe_processor(machine)}, {results['settings']['workers']} workers"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="results file of versus.py")
    parser.add_argument("--only", default="", help="names of tasks, comma separated")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    parser.add_argument(
        "--loaders", action="store_true", help="plot only loaders, without bare processes"
    )
    parser.add_argument("--all", action="store_true", help="print all figures, one table per task")
    options = parser.parse_args()
    results = json.loads(options.result.read_text())
    only = [name for name in options.only.split(",") if name]
    if options.all:
        for task in results["tasks"]:
            print(table(task, results["settings"]["workers"], markdown=True))
    else:
        print(summary(results, only))
    if options.plot:
        picture(results, options.plot, only, loaders=options.loaders)


if __name__ == "__main__":
    main()
