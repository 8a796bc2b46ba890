"""`feedline tune --what-if`: predict a training with something changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from feedline.cli.output import complain, echo_text
from feedline.errors import FeedlineError, UsageError

if TYPE_CHECKING:
    from feedline.forecast.changes import Changes
    from feedline.images.folder import ImageFolder
    from feedline.tuning.tuning_result import TuningResult

__all__ = ["check_changes", "parse_changes", "predict_changes"]


def parse_changes(texts: Sequence[str] | None) -> list[Changes]:
    """Parse the values of `--what-if`."""
    from feedline.forecast.changes import Changes

    return [Changes.parse(text) for text in texts or ()]


def check_changes(changes: Sequence[Changes], source: str, images: ImageFolder | None) -> None:
    """Check that copies of other sizes can be made; `images` is None for a function."""
    from feedline.sources.cache_store import CacheStore

    if images is None and any(each.cache is not None for each in changes):
        raise UsageError(
            f"--what-if cache= needs a folder of images, got the function {source!r}",
            hint="workers=, cores= and gpu= work with a function",
        )
    cached = images is not None and isinstance(images.store, CacheStore)
    if cached and any(each.cache for each in changes):
        raise UsageError(
            f"--what-if cache= needs the original images, and {source} is a cache",
            hint=f"name its originals; `feedline cache info {source}` prints where they are",
        )


def predict_changes(
    found: TuningResult,
    changes: Sequence[Changes],
    images: ImageFolder | None,
    schedule: str | None,
) -> dict[str, Any]:
    """Print the forecast of the schedule and of each change, and return them JSON-able.

    Changes that cannot be predicted are printed to stderr and in "not_predicted", with the reason.
    """
    missing: list[dict[str, str]] = []

    def not_predicted(subject: str, reason: str) -> None:
        missing.append({"asked": subject, "reason": reason})
        complain(f"not predicted: {subject}: {reason}")

    stopped = [phase for phase in found.phases if phase.status in ("interrupted", "error")]
    if stopped:
        reason = stopped[0].error or "Ctrl-C ended the search"
        for subject in (*["the schedule"] * (schedule is not None), *map(str, changes)):
            not_predicted(subject, reason)
        return {"what_if": [], "not_predicted": missing}
    if found.rates:
        for phase in found.phases:
            if phase.best is None and phase.size:
                not_predicted(f"{phase.size} px", phase.reason)
    levels, failure = _measure_copies(found, changes, images)
    result: dict[str, Any] = {"what_if": []}
    if schedule is not None and images is not None:
        try:
            forecast = found.forecast(schedule, images=len(images), levels=levels)
            echo_text(f"\n{forecast}")
            result["forecast"] = forecast.as_dict()
        except UsageError as error:
            not_predicted("the schedule", str(error))
    for each in changes:
        try:
            if failure and isinstance(each.cache, int):
                raise UsageError(failure)
            predicted = found.what_if(each, levels)
            echo_text(f"\n{predicted}")
            result["what_if"].append(predicted.as_dict())
        except UsageError as error:
            not_predicted(str(each), str(error))
    return {**result, "not_predicted": missing}


def _measure_copies(
    found: TuningResult, changes: Sequence[Changes], images: ImageFolder | None
) -> tuple[Mapping[Any, float], str]:
    """Measure copies that changes need: rates by size and copy, or the reason of a failure."""
    sides = sorted({each.cache for each in changes if isinstance(each.cache, int)})
    sizes = [each.size for each in found.rates if each.size]
    if images is None or not sides or not sizes:
        return {}, ""
    from feedline.cache.level_encoder import DEFAULT_JPEG_QUALITY
    from feedline.cache.rates import measure_copies
    from feedline.cache.source import open_source
    from feedline.cli.progress import ProgressBar
    from feedline.sources.manifest import Level
    from feedline.system import usable_cores

    named = " and ".join(f"{side} px" for side in sides)
    complain(f"measuring copies of {named}, about half a minute in addition to --budget", "note")
    try:
        with ProgressBar("starting", clock="elapsed", steady=True) as bar:
            rates, _ = measure_copies(
                open_source(images),
                [[Level(side=side, quality=DEFAULT_JPEG_QUALITY)] for side in sides],
                sizes,
                crop=images.transform,
                workers=usable_cores(),
                progress=lambda stage, done, total: bar.update(done, total, stage),
            )
    except FeedlineError as error:
        return {}, f"copies could not be measured: {error}"
    return rates, ""
