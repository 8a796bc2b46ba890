"""`feedline tune --what-if`: predict a training with something changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from feedline.cli.output import complain, echo_text
from feedline.errors import UsageError

if TYPE_CHECKING:
    from feedline.images.folder import ImageFolder
    from feedline.throughput.estimates import Changes
    from feedline.tuning.result import TuningResult

__all__ = ["parse_changes", "predict_changes"]


def parse_changes(texts: Sequence[str] | None) -> list[Changes]:
    """Parse the values of `--what-if`."""
    from feedline.throughput.estimates import Changes

    return [Changes.parse(text) for text in texts or ()]


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
    result: dict[str, Any] = {"what_if": []}
    if schedule is not None and images is not None:
        try:
            forecast = found.forecast(schedule, images=len(images))
            echo_text(f"\n{forecast}")
            result["forecast"] = forecast.as_dict()
        except UsageError as error:
            not_predicted("the schedule", str(error))
    for each in changes:
        try:
            predicted = found.what_if(each)
            echo_text(f"\n{predicted}")
            result["what_if"].append(predicted.as_dict())
        except UsageError as error:
            not_predicted(str(each), str(error))
    return {**result, "not_predicted": missing}
