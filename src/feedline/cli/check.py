"""`feedline check`: limits that a run has to keep, for CI.

Imports numpy only when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.output import JsonFile, write_json
from feedline.errors import UsageError

__all__ = ["check"]

_FAILED, _INCONCLUSIVE = 1, 3


def check(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run, or the trace.json in it.")
    ],
    max_wait_pct: Annotated[
        float | None, typer.Option(help="Exposed waiting in percent of the time, at most.")
    ] = None,
    min_images_per_s: Annotated[
        float | None, typer.Option(help="Images a second, at least; start-ups left out.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Check a run against limits; exit status 1 where one is not kept, 3 where nothing is known.

    Example: feedline check runs/resnet18-1 --max-wait-pct 5 --min-images-per-s 900
    """
    if max_wait_pct is None and min_images_per_s is None:
        raise UsageError("name a limit: --max-wait-pct, --min-images-per-s, or both")
    if max_wait_pct is not None and not 0 <= max_wait_pct <= 100:
        raise UsageError(f"--max-wait-pct must be from 0 to 100, got {max_wait_pct}")
    if min_images_per_s is not None and not 0 < min_images_per_s < float("inf"):
        raise UsageError(f"--min-images-per-s must be above 0, got {min_images_per_s}")

    from feedline.report.check import checks
    from feedline.report.json_form import plain
    from feedline.report.open_run import facts_at

    facts = facts_at(run)
    found = checks(facts, max_wait_pct, min_images_per_s)
    for each in found:
        typer.echo(f"{_WORDS[each.passed]:<12}  {each.said}")
    if facts.bound == "inconclusive":
        for finding in facts.findings[:1]:
            typer.echo(f"{finding.cause} {finding.evidence}")
    results = [each.passed for each in found]
    status = _FAILED if False in results else _INCONCLUSIVE if None in results else 0
    write_json(
        json,
        {
            "passed": None if status == _INCONCLUSIVE else status == 0,
            "bound": facts.bound,
            "checks": [plain(each) for each in found],
        },
    )
    raise typer.Exit(status)


_WORDS = {True: "passed", False: "FAILED", None: "inconclusive"}
