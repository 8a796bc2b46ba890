"""`--what-if`: what follows from a tuned training for one in which something is changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.cli.output import complain
from feedline.errors import FeedlineError, UsageError

if TYPE_CHECKING:
    from feedline.forecast.changes import Changes
    from feedline.tuning.tuned import Tuned

__all__ = ["WhatIfs", "need_originals", "parsed", "predictions", "refuse_cache"]

WhatIfs = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="CHANGES",
        help="Predict with changes: workers=N, cache=PX or none, cores=N, gpu=TIMES as fast, comma "
        "separated. May be given several times. cache= takes some time beside the budget.",
    ),
]


def parsed(texts: Sequence[str] | None) -> list[Changes]:
    """What is asked for, before anything is measured.

    Raises:
        UsageError: it is not understood.
    """
    from feedline.forecast.changes import Changes

    return [Changes.parse(text) for text in texts or ()]


def need_originals(changes: Sequence[Changes], data: Any) -> None:
    """Refuse to ask for other copies of images that are copies.

    Raises:
        UsageError: so it is.
    """
    from feedline.stores.cache_store import CacheStore

    if any(each.cache for each in changes) and isinstance(data.store, CacheStore):
        raise UsageError(
            f"cache= asks for copies of the originals, and {data.root} is a cache itself; name the "
            "folder that it was made of, which `feedline cache info` says"
        )


def refuse_cache(changes: Sequence[Changes], source: str) -> None:
    """Refuse to ask for other copies of what a function gives.

    Raises:
        UsageError: so it is.
    """
    if any(each.cache is not None for each in changes):
        raise UsageError(
            f"--what-if cache= measures copies of a folder's images, and {source!r} is a function; "
            "leave cache= out (workers=, cores= and gpu= can be asked for), or name the folder"
        )


def predictions(
    found: Tuned, changes: Sequence[Changes], data: Any = None, schedule: str | None = None
) -> dict[str, Any]:
    """Print the forecast of a schedule, and what is asked for; the same, JSON-able.

    What cannot be predicted is said with its reason, on stderr and in "not_predicted".

    Args:
        found: of a training,
        changes: in which these are made.
        data: the images of a folder; copies of some are made where another cache is asked for.
        schedule: of the training; None leaves the forecast out.
    """
    missing: list[dict[str, str]] = []

    def not_predicted(what: str, reason: str) -> None:
        missing.append({"asked": what, "reason": reason})
        complain(f"not predicted: {what}: {reason}", label="")

    broken_off = [phase for phase in found.phases if phase.ended in ("interrupted", "error")]
    if broken_off:
        why = broken_off[0].raised or "Ctrl-C has ended the search"
        for what in (*(["the schedule"] if schedule is not None else []), *map(str, changes)):
            not_predicted(what, f"{why}; run it again")
        return {"what_if": [], "not_predicted": missing}
    if found.rates:
        for phase in found.phases:
            if phase.best is None and phase.size:
                not_predicted(f"{phase.size} px", phase.reason)
    levels, no_levels = _levels(found, changes, data)
    said: dict[str, Any] = {"what_if": []}
    if schedule is not None:
        try:
            forecast = found.forecast(schedule, images=len(data), levels=levels)
            typer.echo(f"\n{forecast}")
            said["forecast"] = forecast.as_dict()
        except UsageError as error:
            not_predicted("the schedule", str(error))
    for each in changes:
        try:
            if no_levels and isinstance(each.cache, int):
                raise UsageError(no_levels)
            predicted = found.what_if(each, levels)
            typer.echo(f"\n{predicted}")
            said["what_if"].append(predicted.as_dict())
        except UsageError as error:
            not_predicted(str(each), str(error))
    return {**said, "not_predicted": missing}


def _levels(found: Tuned, changes: Sequence[Changes], data: Any) -> tuple[Mapping[Any, float], str]:
    """Rates of the levels that are asked for, and why there are none where they are needed."""
    sides = {each.cache for each in changes if isinstance(each.cache, int)}
    sizes = [each.size for each in found.rates if each.size]
    if not sides or not sizes:
        return {}, ""
    typer.echo(
        f"measuring copies of {' and '.join(f'{side} px' for side in sorted(sides))}: that is "
        "beside --budget, and takes half a minute or more",
        err=True,
    )
    begun = time.monotonic()
    try:
        levels = _measured(data, sizes, sides)
    except FeedlineError as error:
        return {}, f"copies could not be measured: {error}"
    typer.echo(f"\ncopies were measured for {time.monotonic() - begun:.0f} s beside the budget")
    return levels, ""


def _measured(data: Any, sizes: Sequence[int], sides: set[int]) -> Mapping[Any, float]:
    """Rates of levels of these sides, in pixels."""
    from rich.progress import TimeElapsedColumn

    from feedline.bench.level_rates import level_costs
    from feedline.cli.bench_progress import BenchProgress
    from feedline.cli.progress import progress_bar
    from feedline.system import usable_cores

    with progress_bar(TimeElapsedColumn(), auto_refresh=False) as bar:
        return level_costs(
            data,
            sizes,
            sorted(sides),
            crop=data.transform,
            workers=usable_cores(),
            report=BenchProgress(bar),
        )
