"""Print the results of `progressive.py` as tables, check the target, and plot.

python benchmarks/progressive_table.py result.json            Markdown
python benchmarks/progressive_table.py result.json --plot result.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from progressive_peers import CONTESTANTS
from report import spread, table

from feedline import Schedule

__all__ = ["bar", "limits", "picture", "tables"]

OURS = "feedline_exact"
MOST_WAIT = 0.03
MOST_TOTAL = 1.03
MOST_DRIFT = 0.05

Results = dict[str, Any]


def speeds(results: Results) -> list[float | None]:
    """Step speeds, slowest first; [None] if a model was trained."""
    return sorted({run["speed"] for run in results["runs"]}, key=lambda speed: speed or 0.0)


def by_contestant(results: Results, speed: float | None) -> dict[str, list[Results]]:
    """Runs at a speed, by contestant."""
    runs = [run for run in results["runs"] if run["speed"] == speed]
    there = [name for name in CONTESTANTS if any(run["contestant"] == name for run in runs)]
    return {name: [run for run in runs if run["contestant"] == name] for name in there}


def sizes(results: Results) -> list[int]:
    return [phase.image_size for phase in Schedule.parse(results["settings"]["schedule"]).phases]


def title(results: Results, speed: float | None) -> str:
    if speed is None:
        return f"{results['settings']['model']} on {results['settings']['device']}"
    return f"step at {speed:.0%} of the limit"


def limits(results: Results) -> str:
    """The limit at each size before each run, which shows how steady the machine was."""
    parts = []
    for size in dict.fromkeys(sizes(results)):
        rates = [rate for run in results["runs"] if (rate := run["limit"].get(str(size)))]
        if rates:
            parts.append(f"{size} px {spread(rates, digits=0)}")
    return f"the limit, images/s: {'; '.join(parts)}\n" if parts else ""


def percent(shares: list[float]) -> str:
    return spread([100 * share for share in shares], digits=1)


def tables(results: Results, *, markdown: bool = False) -> str:
    """One table per step speed."""
    px = sizes(results)
    headers = ["loader", "run / steps alone", *[f"waited at {size}, %" for size in px]]
    headers += [f"switch to {size}: s, x usual" for size in px[1:]]
    headers += ["first batch, s", *(["busy, %"] if speeds(results) == [None] else [])]
    parts = []
    for speed in speeds(results):
        rows = [
            [CONTESTANTS[name], *cells(runs)]
            for name, runs in by_contestant(results, speed).items()
        ]
        for name, why in results["missing"].items():
            rows.append([CONTESTANTS[name], why, *[""] * (len(headers) - 2)])
        parts.append(f"{title(results, speed)}\n\n{table(rows, headers, markdown=markdown)}\n")
    return "\n".join(parts)


def cells(runs: list[Results]) -> list[str]:
    """The row of a contestant."""
    first = runs[0]
    row = [spread([run["total"] for run in runs])]
    row += [percent([run["waits"][k] for run in runs]) for k in range(len(first["waits"]))]
    for k in range(len(first["switches"])):
        seconds = median(run["switches_s"][k] for run in runs)
        row.append(f"{seconds:.3f}, {spread([run['switches'][k] for run in runs], digits=1)}")
    row.append(spread([run["first_batch_s"] for run in runs], digits=2))
    if first["speed"] is None:
        row.append(percent([run["busy"] for run in runs]))
    return row


def drift(run: Results) -> float:
    """Largest relative change of the limit around a run, over the sizes."""
    after = run["limit_after"]
    return max(abs(after[size] / rate - 1) for size, rate in run["limit"].items())


def bar(results: Results) -> str:
    """Compare feedline's medians over steady runs with the target."""
    runs = by_contestant(results, 1.0).get(OURS, [])
    steady = [run for run in runs if drift(run) <= MOST_DRIFT]
    prefix = "the bar, feedline with steps at 100% of the limit: "
    if not runs:
        return f"{prefix}not tried"
    if not steady:
        return f"{prefix}not decided, in none of {len(runs)} runs was the machine steady"
    wait = max(median(waits) for waits in zip(*[run["waits"] for run in steady], strict=True))
    total = median(run["total"] for run in steady)
    met = wait <= MOST_WAIT and total <= MOST_TOTAL
    return (
        f"{prefix}{'met' if met else 'MISSED'}; exposed wait {100 * wait:.1f}% in the worst phase "
        f"(at most {100 * MOST_WAIT:.0f}%), run / steps alone {total:.3f} (at most {MOST_TOTAL}); "
        f"{len(steady)} of {len(runs)} runs were on a steady machine"
    )


def picture(results: Results, path: Path) -> None:
    """Plot the data wait by phase at the slowest and fastest step; whiskers show the range."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    # Okabe-Ito palette, distinguishable with colour blindness.
    colours = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#D55E00")
    px = sizes(results)
    plotted = sorted({*speeds(results)[:1], *speeds(results)[-1:]}, key=lambda speed: speed or 0.0)
    figure, axes = plt.subplots(
        1,
        len(plotted),
        figsize=(1.5 + 5.0 * len(plotted), 5.0),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    thick = 0.8 / len(px)
    for axis, speed in zip(axes.flat, plotted, strict=True):
        parts = by_contestant(results, speed)
        for k, size in enumerate(px):
            waits = [[100 * run["waits"][k] for run in runs] for runs in parts.values()]
            middle = [median(each) for each in waits]
            bars = axis.barh(
                [number + (k - (len(px) - 1) / 2) * thick for number in range(len(parts))],
                middle,
                thick,
                xerr=[
                    [m - min(each) for m, each in zip(middle, waits, strict=True)],
                    [max(each) - m for m, each in zip(middle, waits, strict=True)],
                ],
                color=colours[k % len(colours)],
                edgecolor="#000000",
                linewidth=0.5,
                error_kw={"linewidth": 1},
                label=f"{size} px",
            )
            axis.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
        axis.set_yticks(range(len(parts)), [CONTESTANTS[name] for name in parts])
        axis.set_title(title(results, speed))
        axis.set_xlabel("time waited for a batch, % of the phase")
        axis.set_xlim(left=0)
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].invert_yaxis()
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(px)
    )
    settings, machine = results["settings"], results["machine"]
    figure.suptitle(
        f"{settings['schedule']}, batches of {settings['batch_size']}, {settings['workers']} "
        f"workers, {machine['cpu_model']}",
        fontsize=10,
    )
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="results file of progressive.py")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    options = parser.parse_args()
    results = json.loads(options.result.read_text())
    print(tables(results, markdown=True))
    print(f"{limits(results)}{bar(results)}")
    if options.plot:
        picture(results, options.plot)


if __name__ == "__main__":
    main()
