"""`feedline tune DIR`: a folder's images, tuned for, and then made in other ways.

Guarantees: by default some of the images, drawn at random, are read before anything is measured,
so that they come out of the page cache; workers end with it. Ctrl-C gives what is known so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from feedline.tuning.failure import Failure
from feedline.tuning.metered import Metered
from feedline.tuning.own_loader import OwnLoader
from feedline.tuning.rehearsal import Rehearsal, Step
from feedline.tuning.tune import Told, paced, search_settings
from feedline.tuning.tuned import Tuned
from feedline.tuning.tuned_phase import Other, TunedPhase

__all__ = ["FolderTuning", "tune_folder"]

_DEEPEST = 8
_MEMORY = 0.1  # of what is available, for batches made ahead
_BATCHES = 4  # at least, of the images that are drawn
_LEAST_S, _MOST_S = 1.0, 3.0  # a trial of another way
_START_S = 1.0  # of its workers, about


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
    found = replace(found, files=files)
    for name, build in _other_ways(asked, images).items():
        if all(phase.ended == "done" for phase in found.phases):
            until = begun + asked.budget_s
            found = _with_other(found, name, build, step, step_ms, warm, until)
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


def _loader(asked: FolderTuning, images: ImageFolder, *, cached: bool = True) -> DataLoader[Any]:
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


def _other_ways(
    asked: FolderTuning, images: ImageFolder
) -> dict[str, Callable[[], DataLoader[Any]]]:
    """Other ways to make the same images, by what is different."""
    ways: dict[str, Callable[[], DataLoader[Any]]] = {}
    if asked.cache is not None:
        ways["the originals"] = lambda: _loader(asked, images, cached=False)
    other: Literal["exact", "scaled"] = "scaled" if asked.decode == "exact" else "exact"
    if asked.cache is None and not is_cache(str(asked.root)):
        changed = replace(asked, decode=other)
        ways[f"decode={other!r}"] = lambda: _loader(changed, _images(changed)[0])
    return ways


def _with_other(
    found: Tuned,
    name: str,
    build: Callable[[], DataLoader[Any]],
    step: Step | None,
    step_ms: float | None,
    warm: int,
    until: float,
) -> Tuned:
    """What was found, with one more way to make the images, at each size where the step waits."""
    phases: list[TunedPhase] = []
    failure: Failure | None = None
    with build() as loader:
        tried = OwnLoader(loader)
        largest = max((phase.size or 0 for phase in found.phases), default=0)
        for k, (planned, phase) in enumerate(zip(tried.phases, found.phases, strict=True)):
            left_s = until - time.monotonic()
            if phase.best is None or phase.reached or left_s < _LEAST_S + _START_S:
                phases.append(phase)
                continue
            own_step = Metered(step or paced(step_ms or 0.0, phase.size, largest))
            rehearsal = Rehearsal(tried, own_step, phase.size)
            try:
                tried.begin(planned)
                rehearsal.warm(warm, until)
                left_s = until - time.monotonic()
                if left_s > 0:
                    seconds = min(_MOST_S, left_s)
                    trial = rehearsal.trial(phase.best.setting, least_s=_LEAST_S, most_s=seconds)
                    other = Other(name=name, trial=trial)
                    phase = replace(phase, others=(*phase.others, other))
            except KeyboardInterrupt:
                phases += [replace(each, ended="interrupted") for each in found.phases[k:]]
                break
            except UsageError:
                raise
            except Exception as error:
                failure = Failure(error, own_step.raised(error))
                phases.append(replace(phase, ended="error", raised=failure.said))
                phases += found.phases[k + 1 :]
                break
            phases.append(phase)
        tried.close()
    return replace(found, phases=tuple(phases), failure=failure)
