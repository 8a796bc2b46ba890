"""A plan of a cache: what was measured, what follows for each choice, and what to run."""

from __future__ import annotations

import glob
import os
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from feedline.cache.advice import Advice
from feedline.cache.choice import Choice, Limits, Measured, PhaseRate
from feedline.remote.filesystem import is_url
from feedline.stores.cache_layout import Level

__all__ = ["CachePlan"]


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """What `plan_cache` found.

    Args:
        source: its path, or what the Dataset is called.
        kind: "folder", "webdataset", "parquet" or "dataset".
        transform: which part of an image is shown, in words.
        workers: processes that the rates are of; 0: the training process.
        auto: these are as many as there are usable cores, as by default.
        measured: what was measured.
        limits: what the disk and memory were taken for.
        looked_at: how many images copies were made of.
        median_px: their median height and median width.
        small: how many of them have a side shorter than the largest rows.
        skipped: the names of broken images that were left out, and why.
        originals: what the schedule takes without a cache.
        choices: all that were compared, by quality and number of levels.
        advice: which one to build, and why.
    """

    source: str
    kind: str
    transform: str
    workers: int
    auto: bool
    measured: Measured
    limits: Limits
    looked_at: int
    median_px: tuple[int, int]
    small: int
    skipped: tuple[tuple[str, str], ...]
    originals: Choice
    choices: tuple[Choice, ...]
    advice: Advice

    @property
    def command(self) -> str:
        """What builds the recommended cache, for a shell, of a Dataset in Python; "" for none."""
        choice = self.advice.choice
        if choice is None:
            return ""
        quality = "raw=True" if choice.quality is None else f"quality={choice.quality}"
        if self.kind == "dataset":
            more = "" if self.auto else f", workers={self.workers}"
            more += ', on_error="skip"' if self.skipped else ""
            return f'feedline.build_cache(dataset, "cache/", {choice.sides}, {quality}{more})'
        parts = ["feedline", "cache", "build", self.source, _beside(self.source)]
        parts += ["--sizes", ",".join(map(str, choice.sides))]
        parts += ["--raw"] if choice.quality is None else ["--quality", str(choice.quality)]
        parts += [] if self.auto else ["--workers", str(self.workers)]
        parts += ["--on-error", "skip"] if self.skipped else []
        return shlex.join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The plan, JSON-able; names end in the units."""
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


def _beside(source: str) -> str:
    """Where a cache of a source may lie: beside its folder, or here where that is far away."""
    named = source.lower().endswith((".tar", ".parquet")) or glob.has_magic(source)
    files = named and not os.path.isdir(source)
    folder = (os.path.dirname(source) if files else source).rstrip("/")
    return f"{os.path.basename(folder) if is_url(source) else folder}-cache"


def _level(level: Level) -> dict[str, Any]:
    return {"size_px": level.side, "quality": level.quality}


def _choice(choice: Choice) -> dict[str, Any]:
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
