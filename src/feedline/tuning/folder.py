"""`feedline tune DIR`: tune for a folder of images.

Guarantees: by default random images are read before the measurement, so that they come from the
page cache. Workers end with it. Ctrl-C returns the results so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from feedline.engine.defaults import DEFAULT_PREFETCH, slots_for
from feedline.errors import UsageError
from feedline.images.crops import TrainCrop
from feedline.images.folder import ENOUGH_IMAGES, ImageFolder, sample_folder
from feedline.loader import DataLoader
from feedline.order.schedule import Schedule
from feedline.sources.manifest import is_cache
from feedline.system import available_memory_bytes
from feedline.tuning.training_step import Step
from feedline.tuning.tune import TrialCallback, search_settings
from feedline.tuning.tuning_result import TuningResult

__all__ = ["FolderTuning", "tune_folder"]

_MAX_PREFETCH = 8
_MEMORY_SHARE = 0.1  # of the available memory, for prefetched batches
_MIN_BATCHES = 4  # of the images that are drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTuning:
    """Options of `tune_folder`.

    Args:
        root: class folders of images, or a cache.
        schedule: phases, in the syntax of `Schedule.parse`.
        batch_size: batch size of phases that set none.
        cache: cache of resized copies; None for none.
        decode: JPEG decoding, see `ImageFolder`.
        device: device of the batches; None for batches in host memory.
        warm: True: only images that were read before the measurement are used.
        budget_s: time limit in seconds.
    """

    root: Path
    schedule: str
    batch_size: int
    cache: Path | None = None
    decode: Literal["exact", "scaled"] = "exact"
    device: str | None = None
    warm: bool = True
    budget_s: float = 60.0

    @property
    def phases(self) -> Schedule:
        """Parsed schedule."""
        return Schedule.parse(self.schedule)


def tune_folder(
    options: FolderTuning,
    step: Step | None = None,
    *,
    step_ms: float | None = None,
    on_trial: TrialCallback | None = None,
) -> TuningResult:
    """Tune a loader over a folder.

    Args:
        options: images and loader.
        step, step_ms, on_trial: see `tune`.

    An exception of the step ends the search; all trials are kept.

    Raises:
        UsageError: a folder, a setting or the step cannot be used.
    """
    if options.cache is not None and not is_cache(str(options.cache)):
        raise UsageError(
            f"{str(options.cache)!r} is not a finished cache",
            hint="build one with feedline cache build",
        )
    images, files, warmup_batches = _images(options)
    with _loader(options, images) as loader:
        found = search_settings(
            loader,
            step,
            step_ms=step_ms,
            budget_s=options.budget_s,
            on_trial=on_trial,
            warmup_batches=warmup_batches,
        )
    copies = {rates.size: rates.level_px for rates in found.rates}
    phases = [replace(phase, copies_px=copies.get(phase.size)) for phase in found.phases]
    return replace(found, files=files, phases=tuple(phases))


def _images(options: FolderTuning) -> tuple[ImageFolder, str, int]:
    """Return the images, the state of their files in words, and the number of warm-up batches."""
    folder = ImageFolder(options.root, transform=TrainCrop(), decode=options.decode)
    if not options.warm or is_cache(str(options.root)):
        return folder, "from disk or the page cache", 0
    rows = [phase.batch_size or options.batch_size for phase in options.phases.phases]
    some = sample_folder(folder, seed=0, most=max(ENOUGH_IMAGES, _MIN_BATCHES * max(rows)))
    files = f"{len(some)} of {len(folder)} images, from the page cache"
    return some, files, -(-len(some) // min(rows))


def _loader(options: FolderTuning, images: ImageFolder) -> DataLoader[Any]:
    return DataLoader(
        images,
        options.batch_size,
        schedule=options.schedule,
        num_workers="auto",
        prefetch=_prefetch(options),
        drop_last=True,
        cache=options.cache,
        device=options.device,
    )


def _prefetch(options: FolderTuning) -> int:
    """Return the largest number of prefetched batches that fits into memory."""
    slot = max(
        3 * (phase.image_size or 0) ** 2 * (phase.batch_size or options.batch_size)
        for phase in options.phases.phases
    )
    fitting = int(_MEMORY_SHARE * available_memory_bytes()) // max(1, slot) - slots_for(0)
    return max(DEFAULT_PREFETCH, min(_MAX_PREFETCH, fitting))
