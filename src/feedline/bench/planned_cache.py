"""A cache plan: measurements, a prediction for each choice, and the command to run."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.filesize import decimal

from feedline.bench.table import align_columns, wrap_text
from feedline.cache.advice import Advice
from feedline.cache.choice import (
    CacheMeasurement,
    LevelChoice,
    MachineLimits,
    PhaseRate,
    useful_choices,
)
from feedline.diagnose.finding import count
from feedline.forecast.text import duration
from feedline.remote.filesystem import is_url
from feedline.sources.cache_layout import Level

__all__ = ["CachePlan", "plan_table"]


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """Result of `plan_cache`.

    Args:
        source: its path, or the name of the Dataset.
        kind: "folder", "webdataset", "parquet" or "dataset".
        transform: `repr` of the transform.
        workers: number of processes the rates hold for; 0: the training process.
        auto: `workers` is the default, the number of usable cores.
        measured: the measurements.
        limits: assumed limits of disk and memory.
        looked_at: number of images that were copied and measured.
        median_px: their median height and median width.
        small: number of them with a side shorter than the largest rows.
        skipped: (name, reason) of broken images.
        originals: prediction for the schedule without a cache.
        choices: all compared choices, by quality and number of levels.
        advice: the recommended choice and the reason.
    """

    source: str
    kind: str
    transform: str
    workers: int
    auto: bool
    measured: CacheMeasurement
    limits: MachineLimits
    looked_at: int
    median_px: tuple[int, int]
    small: int
    skipped: tuple[tuple[str, str], ...]
    originals: LevelChoice
    choices: tuple[LevelChoice, ...]
    advice: Advice

    @property
    def command(self) -> str:
        """Command for a shell, or call for a Dataset, that builds the recommended cache, or ""."""
        choice = self.advice.choice
        if choice is None:
            return ""
        quality = "raw=True" if choice.quality is None else f"quality={choice.quality}"
        if self.kind == "dataset":
            more = "" if self.auto else f", workers={self.workers}"
            more += ', on_error="skip"' if self.skipped else ""
            return f'feedline.build_cache(dataset, "cache/", {choice.sides}, {quality}{more})'
        parts = ["feedline", "cache", "build", self.source, _cache_path(self.source)]
        parts += ["--sizes", ",".join(map(str, choice.sides))]
        parts += ["--raw"] if choice.quality is None else ["--quality", str(choice.quality)]
        parts += [] if self.auto else ["--workers", str(self.workers)]
        parts += ["--on-error", "skip"] if self.skipped else []
        return shlex.join(parts)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan, JSON-able; names end in the units."""
        measured, advised = self.measured, self.advice.choice
        height_px, width_px = self.median_px
        return {
            "source": self.source,
            "kind": self.kind,
            "transform": self.transform,
            "schedule": str(measured.schedule),
            "workers": self.workers,
            "images": measured.images,
            "images_measured": self.looked_at,
            "images_shorter_than_rows": self.small,
            "height_px_median": height_px,
            "width_px_median": width_px,
            "original_bytes_mean": measured.original_bytes or None,
            "original_open_s": measured.open_s,
            "limits": asdict(self.limits),
            "levels": [
                {**_level(level), **asdict(cost)} for level, cost in measured.levels.items()
            ],
            "originals": _choice(self.originals),
            "choices": [_choice(choice) for choice in self.choices],
            "recommended": None if advised is None else _choice(advised),
            "why": self.advice.why,
            "command": self.command or None,
            "skipped": [{"name": name, "why": why} for name, why in self.skipped],
        }


def _cache_path(source: str) -> str:
    """Path for a cache of a source: next to its folder, or in this folder for a remote source."""
    named = source.lower().endswith((".tar", ".parquet")) or glob.has_magic(source)
    files = named and not os.path.isdir(source)
    folder = (os.path.dirname(source) if files else source).rstrip("/")
    return f"{os.path.basename(folder) if is_url(source) else folder}-cache"


def _level(level: Level) -> dict[str, Any]:
    return {"size_px": level.side, "quality": level.quality}


def _choice(choice: LevelChoice) -> dict[str, Any]:
    return {
        "levels": [_level(level) for level in choice.levels],
        "bytes": round(choice.bytes),
        "build_s": choice.build_s,
        "load_s": choice.load_s,
        "paid_after_epochs": choice.paid_after,
        "difference_grey_levels": choice.difference,
        "phases": [_phase(phase) for phase in choice.phases],
    }


def _phase(phase: PhaseRate) -> dict[str, Any]:
    return {**asdict(phase), "level": None if phase.level is None else _level(phase.level)}


_MAX_COLUMNS = 4
_SKIPPED_SHOWN = 3


def plan_table(plan: CachePlan) -> str:
    """Format the best choices, the recommendation and its assumptions, at most 100 columns wide."""
    advised = plan.advice.choice
    shown = useful_choices(plan.choices, advised)
    sizes = sorted(plan.measured.wanted)
    if len(sizes) > _MAX_COLUMNS:
        sizes = []
    heads = ["", *([f"{size} px" for size in sizes] or ["images/s"]), "loading", "disk", "memory"]
    heads += ["build", "paid after", "differs by"]
    rows = [heads, *(_cells(choice, plan, sizes) for choice in (plan.originals, *shown))]
    marks = [" ", *("*" if choice is advised else " " for choice in (plan.originals, *shown))]
    table = [f"{mark} {row}" for mark, row in zip(marks, align_columns(rows), strict=True)]
    parts = [*_headline(plan), "", *table, "", *wrap_text(plan.advice.why)]
    if plan.command:
        parts += ["", plan.command]
    return "\n".join([*parts, *_remarks(plan)])


def _headline(plan: CachePlan) -> list[str]:
    measured, (height, width) = plan.measured, plan.median_px
    size = f", {decimal(round(measured.original_bytes))}" if measured.original_bytes else ""
    workers = f"{plan.workers} worker{'s' * (plan.workers != 1)}" if plan.workers else "no workers"
    return wrap_text(
        f"{measured.images} images{size}, {width}x{height} px, for {measured.schedule} with "
        f"{workers}: images/s from memory, predicted from {plan.looked_at} images"
    )


def _cells(choice: LevelChoice, plan: CachePlan, sizes: Sequence[int]) -> list[str]:
    rates = {phase.size: phase.images_per_s for phase in choice.phases}
    if sizes:
        shown = [rates[size] for size in sizes]
    else:
        shown = [plan.measured.images * plan.measured.schedule.epochs / choice.load_s]
    made = bool(choice.levels)
    total = choice.bytes if made else plan.measured.images * plan.measured.original_bytes
    most = max(phase.disk_bytes_per_s for phase in choice.phases)
    paid = "later" if choice.paid_after is None else count(choice.paid_after, "epoch")
    return [
        str(choice),
        *(f"{rate:.0f}" for rate in shown),
        duration(choice.load_s),
        decimal(round(total)) if total else "-",
        f"{decimal(round(most))}/s" if most else "holds",
        duration(choice.build_s) if made else "-",
        paid if made else "-",
        f"{choice.difference:.1f}" if made else "-",
    ]


def _remarks(plan: CachePlan) -> list[str]:
    limits = plan.limits
    remarks = [
        f"Assumed limits: {decimal(round(limits.disk_bytes))} of disk for a cache, "
        f"{decimal(round(limits.memory_bytes))} of memory for its files, "
        f"{decimal(round(limits.disk_bytes_per_s))}/s to read from the disk and to write to it. "
        "`memory`: bytes per second that the disk must read if memory does not hold the level. "
        "`differs by`: mean difference from rows of the originals, in grey levels."
    ]
    if plan.small:
        remarks.append(
            f"{plan.small} of {plan.looked_at} images have a side shorter than "
            f"{max(plan.measured.wanted)} px: they are enlarged."
        )
    lines = ["", *(line for each in remarks for line in wrap_text(each))]
    if plan.skipped:
        lines.append(f"unreadable images left out: {len(plan.skipped)}, for example")
        lines += [f"  {name}: {why}" for name, why in plan.skipped[:_SKIPPED_SHOWN]]
    return lines
