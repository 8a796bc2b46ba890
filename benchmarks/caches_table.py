"""Print the results of `caches_versus.py` as tables, with feedline's targets.

python benchmarks/caches_table.py benchmarks/results/caches.json            Markdown
python benchmarks/caches_table.py benchmarks/results/caches.json --all      all figures
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import report

__all__ = ["bars", "summary", "table"]

OURS = "feedline, webdataset"
FILES = "feedline, folder"
BARE = "bare processes, feedline's rows"
FFCV = "FFCV"
TORCH = ("torch + Pillow", "torch float32", "torch uint8", "torch uint8, by hand", "timm")
WEBDATASET = ("WebDataset", "WebDataset + Pillow")

Peer = dict[str, Any]


@dataclass(frozen=True)
class Bar:
    """A target: minimum ratio of feedline's rate to the fastest of several peers.

    Args:
        work: name of the task.
        others: names of the peers.
        least: minimum ratio.
        ours: name of the measured contestant.
    """

    work: str
    others: tuple[str, ...]
    least: float
    ours: str = OURS


_WORKS = ("256 px JPEG @224", "128 px JPEG @112", "256 px raw @224", "128 px raw @112")
BARS = (
    Bar(_WORKS[0], (FFCV,), 2.2),
    Bar(_WORKS[0], TORCH, 2.8),
    Bar(_WORKS[0], WEBDATASET, 3.0),
    Bar(_WORKS[1], (FFCV,), 1.8),
    Bar(_WORKS[1], TORCH, 4.0),
    Bar(_WORKS[2], (FFCV,), 3.0),
    Bar(_WORKS[3], (FFCV,), 3.0),
    *(Bar(work, (BARE,), 0.90) for work in _WORKS),
    *(Bar(work, (FILES,), 0.95) for work in _WORKS),
    *(Bar(work, (FILES,), 0.95, "feedline, lmdb") for work in _WORKS),
)


def ratios(ours: Peer, theirs: Peer) -> list[float]:
    """Ratio of two rates, per round."""
    return [a / b for a, b in zip(ours["rates"], theirs["rates"], strict=True)]


def rate(peer: Peer) -> float:
    """Images per second."""
    return median(peer["rates"])


def part(task: dict[str, Any]) -> dict[str, Peer]:
    """Peers that could run, by name."""
    return {peer["name"]: peer for peer in task["peers"] if peer["rates"]}


def table(task: dict[str, Any], markdown: bool = False) -> str:
    """All figures of one task."""
    there = part(task)
    ours = there.get(OURS)
    rows = [
        [
            name,
            f"{rate(peer):.0f}",
            f"{min(peer['rates']):.0f}-{max(peer['rates']):.0f}",
            report.spread(ratios(ours, peer)) if ours and peer is not ours else "",
            f"{max(peer['pss_mb']):.0f}",
            peer["pixels"],
        ]
        for name, peer in there.items()
    ]
    rows += [
        [peer["name"], *[""] * 4, peer["missing"]] for peer in task["peers"] if not peer["rates"]
    ]
    headers = ["loader", "img/s", "range", f"{OURS} / it", "PSS MB", "pixels"]
    return f"{task['name']}\n\n{report.table(rows, headers, markdown=markdown)}\n"


def bars(results: dict[str, Any]) -> str:
    """One line per target: met or missed."""
    works = {task["name"]: part(task) for task in results["tasks"]}
    lines = []
    for bar in BARS:
        there = works.get(bar.work, {})
        others = [there[name] for name in bar.others if name in there]
        if bar.ours not in there or not others:
            continue
        quickest = max(others, key=rate)
        measured = ratios(there[bar.ours], quickest)
        verdict = "met   " if median(measured) >= bar.least else "MISSED"
        lines.append(
            f"{verdict} {bar.work}: {bar.ours} / {quickest['name']} "
            f"{report.spread(measured)}, at least {bar.least}"
        )
    return "\n".join(lines)


def summary(results: dict[str, Any]) -> str:
    """One row per loader and one column per task: images per second and feedline's ratio."""
    names: list[str] = []
    for task in results["tasks"]:
        names += [name for name in part(task) if name not in names]
    works = [(task["name"], part(task)) for task in results["tasks"]]
    rows = [[name, *(_cell(there, name) for _, there in works)] for name in names]
    headers = [f"images per second ({OURS} / it)", *(name for name, _ in works)]
    return report.table(rows, headers, markdown=True)


def _cell(there: dict[str, Peer], name: str) -> str:
    if name not in there:
        return ""
    said = f"{rate(there[name]):.0f}"
    return said if name == OURS else f"{said} ({median(ratios(there[OURS], there[name])):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("result", type=Path, help="results file of caches_versus.py")
    parser.add_argument("--all", action="store_true", help="print all figures, one table per task")
    options = parser.parse_args()
    results = json.loads(options.result.read_text())
    if options.all:
        for task in results["tasks"]:
            print(table(task, markdown=True))
    else:
        print(summary(results))
    print(f"\n{bars(results)}")


if __name__ == "__main__":
    main()
