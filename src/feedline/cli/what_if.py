"""`--what-if`: what follows from a tuned training for one in which something is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feedline.errors import UsageError

if TYPE_CHECKING:
    from feedline.forecast.changes import Changes
    from feedline.tuning.tuned import Tuned

__all__ = ["WhatIfs", "need_originals", "parsed", "predictions"]

WhatIfs = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="CHANGES",
        help="Predict with changes: workers=N, cache=PX or none, cores=N, gpu=TIMES as fast, comma "
        "separated. May be given several times.",
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


def predictions(
    found: Tuned, changes: Sequence[Changes], data: Any, schedule: str
) -> dict[str, Any]:
    """Print the forecast of a schedule, and what is asked for; the same, JSON-able.

    Nothing where nothing was measured, or Ctrl-C has ended it.

    Args:
        found: of a training,
        changes: in which these are made.
        data: the images; copies of some are made where another cache is asked for.
        schedule: of the training.
    """
    if not found.rates or any(phase.ended == "interrupted" for phase in found.phases):
        return {}
    sides = {each.cache for each in changes if isinstance(each.cache, int)}
    levels = _measured(data, [each.size for each in found.rates if each.size], sides)
    forecast = found.forecast(schedule, images=len(data), levels=levels)
    predicted = [found.what_if(each, levels) for each in changes]
    for each in (forecast, *predicted):
        typer.echo(f"\n{each}")
    return {
        "forecast": forecast.as_dict(),
        "what_if": [each.as_dict() for each in predicted],
    }


def _measured(data: Any, sizes: Sequence[int], sides: set[int]) -> Mapping[Any, float]:
    """Rates of levels of these sides, in pixels; of none where no other cache is asked for."""
    if not sides:
        return {}
    from rich.progress import TimeElapsedColumn

    from feedline.bench.level_costs import level_costs
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
