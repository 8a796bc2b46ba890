"""Measurements of a benchmark, and their JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal, TypeAlias

from feedline.profile.bench.options import BenchmarkOptions
from feedline.profile.bench.rate import Turn
from feedline.profile.bench.stages import StageCosts
from feedline.profile.bench.survey import Survey

__all__ = ["BenchmarkResult", "BenchmarkRow", "Loader", "Omission", "Spread"]

Loader: TypeAlias = Literal["feedline", "torch"]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        return cls(median(values), min(values), max(values))

    @property
    def width(self) -> float:
        """Range from minimum to maximum, as a share of the median."""
        return (self.high - self.low) / self.median


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRow:
    """Measurements of one loader, one turn per round.

    `first_batch_s` is the time from building the loader to its first batch.
    """

    name: str
    loader: Loader
    first_batch_s: float
    turns: tuple[Turn, ...]

    @property
    def images_per_s(self) -> Spread:
        """Rate over the rounds."""
        return Spread.of([turn.images_per_s for turn in self.turns])

    @property
    def cpu_s_per_1000_images(self) -> float:
        """CPU seconds of all its processes, over all rounds."""
        return 1000 * sum(turn.cpu_s for turn in self.turns) / sum(t.images for t in self.turns)

    def ratio_to(self, other: BenchmarkRow) -> Spread:
        """This rate / the other's, of the same rounds."""
        pairs = zip(self.turns, other.turns, strict=True)
        return Spread.of([a.images_per_s / b.images_per_s for a, b in pairs])


@dataclass(frozen=True, slots=True)
class Omission:
    """Requested measurement that was not made, and the reason."""

    what: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkResult:
    """Measurements of a benchmark.

    Args:
        settings: the options.
        workers: processes that loaded images; 0: the training process loaded them.
        cores: number of cores the processes can use: the usable ones, at most one a process.
        images, classes: numbers of images and classes in the folder.
        survey: the measured images.
        stages: cost of one image in one process.
        rows: the loaders; the first is feedline.
        skipped: (path, reason) of images that could not be loaded.
        left_out: measurements that could not be made.
        machine, versions: machine and software.
        elapsed_s: total time.
    """

    settings: BenchmarkOptions
    workers: int
    cores: int
    images: int
    classes: int
    survey: Survey
    stages: StageCosts
    rows: tuple[BenchmarkRow, ...]
    skipped: list[tuple[str, str]]
    left_out: list[Omission]
    machine: dict[str, Any]
    versions: dict[str, str | None]
    elapsed_s: float

    @property
    def ours(self) -> BenchmarkRow:
        """Measurements of feedline, the base of all ratios."""
        return self.rows[0]

    def as_dict(self) -> dict[str, Any]:
        """Return the result, JSON-able; names end in the units."""
        height_px, width_px = self.survey.median_px
        return {
            "settings": self.settings.as_dict(),
            "workers": self.workers,
            "cores_used": self.cores,
            "data": {
                "images": self.images,
                "classes": self.classes,
                "images_measured": len(self.survey.images),
                "images_shorter_than_size": self.survey.count_smaller(self.settings.size_px),
                "file_bytes_mean": self.survey.file_bytes,
                "height_px_median": height_px,
                "width_px_median": width_px,
            },
            "rows": [self._row(row) for row in self.rows],
            "one_image": {**asdict(self.stages), "total_ms": self.stages.total_ms},
            "left_out": [asdict(each) for each in self.left_out],
            "skipped": [{"file": path, "reason": reason} for path, reason in self.skipped],
            "machine": self.machine,
            "versions": self.versions,
            "elapsed_s": self.elapsed_s,
        }

    def _row(self, row: BenchmarkRow) -> dict[str, Any]:
        return {
            "name": row.name,
            "loader": row.loader,
            "images_per_s": asdict(row.images_per_s),
            "images_per_s_per_core": row.images_per_s.median / self.cores,
            "ratio_to_feedline": asdict(row.ratio_to(self.ours)),
            "first_batch_s": row.first_batch_s,
            "cpu_s_per_1000_images": row.cpu_s_per_1000_images,
            "turns": [asdict(turn) for turn in row.turns],
        }
