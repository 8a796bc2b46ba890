"""`feedline tune DIR`: a folder's images, tuned for, and then made in other ways.

Guarantees: by default some of the images, drawn at random, are read before anything is measured,
so that they come out of the page cache; workers end with it. Ctrl-C gives what is known so far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from feedline.engine.defaults import DEFAULT_PREFETCH, slots_for
from feedline.errors import UsageError
from feedline.images.crops import TrainCrop
from feedline.images.drawn import ENOUGH_IMAGES, drawn
from feedline.images.folder import ImageFolder
from feedline.loader import DataLoader
from feedline.plan.schedule import Schedule
from feedline.stores.cache_layout import is_cache
from feedline.system import available_memory_bytes
from feedline.tuning.other_way import OtherWay, with_other
from feedline.tuning.rehearsal import Step
from feedline.tuning.tune import Told, search_settings
from feedline.tuning.tuned import Tuned

__all__ = ["FolderTuning", "tune_folder"]

_DEEPEST = 8
_MEMORY = 0.1  # of what is available, for batches made ahead
_COMPARED = 16  # images, whose pixels are compared
_BATCHES = 4  # at least, of the images that are drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTuning:
    """What is asked for.

    Args:
        root: class folders with images, or a cache.
        schedule: phases, as `Schedule.parse` takes them.
        batch_size: images in a batch, where the schedule names none.
        cache: with smaller copies of the images; None without.
        decode: as of `ImageFolder`.
        device: where batches go; None leaves them as the workers made them.
        warm: some images are read before, and only these are taken.
        budget_s: seconds that it may take.
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
        """The schedule, parsed."""
        return Schedule.parse(self.schedule)


def tune_folder(
    asked: FolderTuning,
    step: Step | None = None,
    *,
    step_ms: float | None = None,
    told: Told | None = None,
) -> Tuned:
    """Tune a loader of a folder's images, and try other ways to make them where the step waits.

    Args:
        asked: which images, and how.
        step, step_ms, told: as of `tune`.

    What the step raises ends the search, with all trials kept.

    Raises:
        UsageError: a folder, a setting or the step cannot be used.
    """
    if asked.cache is not None and not is_cache(str(asked.cache)):
        raise UsageError(
            f"{str(asked.cache)!r} is no finished cache, so there is nothing to read from it; "
            "feedline cache build makes one"
        )
    begun = time.monotonic()
    images, files, warm = _images(asked)
    with _loader(asked, images) as loader:
        found = search_settings(
            loader, step, step_ms=step_ms, budget_s=asked.budget_s, told=told, warm=warm
        )
    copies = {rates.size: rates.level_px for rates in found.rates}
    phases = [replace(phase, copies_px=copies.get(phase.size)) for phase in found.phases]
    found = replace(found, files=files, phases=tuple(phases))
    for way in _other_ways(asked, images):
        if all(phase.ended == "done" for phase in found.phases):
            until = begun + asked.budget_s
            found = with_other(found, way, step, step_ms, warm, until)
    return replace(found, seconds=time.monotonic() - begun)


def _images(asked: FolderTuning) -> tuple[ImageFolder, str, int]:
    """The images, how their files are, and how many batches bring them into the page cache."""
    folder = ImageFolder(asked.root, transform=TrainCrop(), decode=asked.decode)
    if not asked.warm or is_cache(str(asked.root)):
        return folder, "as they were, read anew or from the page cache", 0
    rows = [phase.batch_size or asked.batch_size for phase in asked.phases.phases]
    some = drawn(folder, seed=0, most=max(ENOUGH_IMAGES, _BATCHES * max(rows)))
    said = f"{len(some)} of {len(folder)} images, from the page cache"
    return some, said, -(-len(some) // min(rows))


def _loader(
    asked: FolderTuning,
    images: ImageFolder,
    *,
    cached: bool = True,
) -> DataLoader[Any]:
    return DataLoader(
        images,
        asked.batch_size,
        schedule=asked.schedule,
        num_workers="auto",
        prefetch=_depth(asked),
        drop_last=True,
        cache=asked.cache if cached else None,
        device=asked.device,
    )


def _depth(asked: FolderTuning) -> int:
    """How many batches ahead there is memory to try."""
    slot = max(
        3 * (phase.size or 0) ** 2 * (phase.batch_size or asked.batch_size)
        for phase in asked.phases.phases
    )
    fitting = int(_MEMORY * available_memory_bytes()) // max(1, slot) - slots_for(0)
    return max(DEFAULT_PREFETCH, min(_DEEPEST, fitting))


def _few(asked: FolderTuning, images: ImageFolder, cached: bool, size: int) -> DataLoader[Any]:
    """The first images at a size, made in this process: the same crops however they are made."""
    return DataLoader(
        images,
        _COMPARED,
        image_size=size,
        seed=0,
        num_workers=0,
        cache=asked.cache if cached else None,
    )


def _other_ways(asked: FolderTuning, images: ImageFolder) -> Iterator[OtherWay]:
    """Other ways to make the same images."""
    few = partial(_few, asked, images)
    if asked.cache is not None:
        build = partial(_loader, asked, images, cached=False)
        yield OtherWay("the originals", "no cache=", build, partial(few, True), partial(few, False))
    elif not is_cache(str(asked.root)):
        decode: Literal["exact", "scaled"] = "scaled" if asked.decode == "exact" else "exact"
        others, said = _images(replace(asked, decode=decode))[0], f"decode={decode!r}"
        how, other_few = f"feedline.ImageFolder(..., {said})", partial(_few, asked, others, True)
        yield OtherWay(said, how, partial(_loader, asked, others), partial(few, True), other_few)
