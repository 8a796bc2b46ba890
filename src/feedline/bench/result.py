"""What a benchmark measured, and its JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal, TypeAlias

from feedline.bench.copies import Copies
from feedline.bench.rate import Turn
from feedline.bench.settings import Settings
from feedline.bench.stages import Stages
from feedline.bench.survey import Survey

__all__ = ["Files", "LeftOut", "Loader", "Result", "Row", "Spread"]

Loader: TypeAlias = Literal["feedline", "bare", "torch"]
Files: TypeAlias = Literal["originals", "copies"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values, the least and the greatest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(median(values), min(values), max(values))

    @property
    def width(self) -> float:
        """How far apart the least and the greatest are, as a part of the median."""
        return (self.high - self.low) / self.median


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One contestant's measurements, a turn for each round.

    `first_batch_s` is the time from building the loader to its first batch, None without batches.
    """

    name: str
    loader: Loader
    files: Files
    first_batch_s: float | None
    turns: tuple[Turn, ...]

    @property
    def images_per_s(self) -> Spread:
        """The rate over the rounds."""
        return Spread.of([turn.images_per_s for turn in self.turns])

    @property
    def cpu_s_per_1000_images(self) -> float:
        """CPU seconds of all its processes, over all rounds."""
        return 1000 * sum(turn.cpu_s for turn in self.turns) / sum(t.images for t in self.turns)

    def ratio_to(self, other: Row) -> Spread:
        """This rate / the other's, of the same round each."""
        pairs = zip(self.turns, other.turns, strict=True)
        return Spread.of([mine.images_per_s / theirs.images_per_s for mine, theirs in pairs])


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something that was asked for and not measured, and why."""

    what: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a benchmark measured.

    Args:
        settings: what was asked.
        workers: processes that loaded images; 0 where the training process did.
        cores: how many the processes could keep busy: the machine's, at most one a process.
        images, classes: how many the folder has.
        survey: the images that were measured.
        stages: what one image costs in one process.
        copies: smaller copies that were measured, or None.
        rows: the contestants; the first is feedline on the originals.
        skipped: (path, reason) of images that could not be loaded.
        left_out: what could not be measured.
        machine, versions: what it ran on.
        elapsed_s: how long all of it took.
    """

    settings: Settings
    workers: int
    cores: int
    images: int
    classes: int
    survey: Survey
    stages: Stages
    copies: Copies | None
    rows: tuple[Row, ...]
    skipped: list[tuple[str, str]]
    left_out: list[LeftOut]
    machine: dict[str, Any]
    versions: dict[str, str | None]
    elapsed_s: float

    def row(self, loader: str, files: str) -> Row | None:
        """The first contestant of a kind, if it was measured."""
        return next((r for r in self.rows if r.loader == loader and r.files == files), None)

    @property
    def ours(self) -> Row:
        """feedline on the originals, to which all are compared."""
        return self.rows[0]

    @property
    def kept(self) -> dict[str, Spread]:
        """What handing batches over leaves of the bare processes' rate, by what both read."""
        rows = {
            files: (self.row("feedline", files), self.row("bare", files))
            for files in ("originals", "copies")
        }
        return {files: ours.ratio_to(bare) for files, (ours, bare) in rows.items() if ours and bare}

    def as_dict(self) -> dict[str, Any]:
        """The result, JSON-able; names end in the units."""
        height_px, width_px = self.survey.median_px
        return {
            "settings": self.settings.as_dict(),
            "workers": self.workers,
            "cores_used": self.cores,
            "data": {
                "images": self.images,
                "classes": self.classes,
                "images_measured": len(self.survey.looks),
                "images_shorter_than_size": self.survey.smaller_than(self.settings.size_px),
                "file_bytes_mean": self.survey.file_bytes,
                "height_px_median": height_px,
                "width_px_median": width_px,
            },
            "rows": [self._row(row) for row in self.rows],
            "one_image": {**asdict(self.stages), "total_ms": self.stages.total_ms},
            "loader_to_bare": {files: asdict(kept) for files, kept in self.kept.items()},
            "copies": None if self.copies is None else self.copies.as_dict(),
            "left_out": [asdict(each) for each in self.left_out],
            "skipped": [{"file": path, "reason": reason} for path, reason in self.skipped],
            "machine": self.machine,
            "versions": self.versions,
            "elapsed_s": self.elapsed_s,
        }

    def _row(self, row: Row) -> dict[str, Any]:
        return {
            "name": row.name,
            "loader": row.loader,
            "files": row.files,
            "images_per_s": asdict(row.images_per_s),
            "images_per_s_per_core": row.images_per_s.median / self.cores,
            "ratio_to_feedline": asdict(row.ratio_to(self.ours)),
            "first_batch_s": row.first_batch_s,
            "cpu_s_per_1000_images": row.cpu_s_per_1000_images,
            "turns": [asdict(turn) for turn in row.turns],
        }
