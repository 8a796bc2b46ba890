"""`feedline report`: what binds a run, from its trace alone.

Imports numpy and the drawing only when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.cli.output import HtmlFile, JsonFile, write_json, write_text
from feedline.cli.screen import columns, say
from feedline.errors import UsageError

__all__ = ["report"]


def report(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The folder of a run, or the trace.json in it."),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="A B", help="Two runs, side by side, and how many times as fast B is."
        ),
    ] = None,
    html: HtmlFile = None,
    json: JsonFile = None,
) -> None:
    """Say what binds a run, how fast it could be, and what to change.

    Reads what feedline.watch(..., run=FOLDER) or feedline train recorded. The
    page of --html is one file that needs no network. Exit status: 0 where there
    is nothing to mend, 1 with a finding, 3 where too little was measured. With
    --compare: 1 where B is slower than A beyond the spread.

    Example: feedline report runs/resnet18-1 --html report.html
    """
    if (run is None) == (compare is None):
        raise UsageError("name one run, or two with --compare A B")
    if compare is not None and html is not None:
        raise UsageError("--html draws one run; --compare goes with --json")
    if compare is not None:
        _compare(compare, json)
        return
    assert run is not None

    import sys

    from feedline.report.check import report_status
    from feedline.report.glyphs import glyphs_for
    from feedline.report.json_form import as_json
    from feedline.report.open_run import facts_at
    from feedline.report.terminal import report_view

    facts = facts_at(run)
    say(report_view(facts, str(run), glyphs_for(sys.stdout), columns()))
    if html is not None:
        from feedline.report.page import page

        write_text(html, page(facts, str(run)))
    write_json(json, as_json(facts))
    raise typer.Exit(report_status(facts))


def _compare(runs: tuple[Path, Path], json: Path | None) -> None:
    from feedline.report.compare import compare
    from feedline.report.comparison_view import comparison_view, verdict_of
    from feedline.report.json_form import plain
    from feedline.report.open_run import facts_at

    found = compare(*(facts_at(run) for run in runs))
    status, said = verdict_of(found)
    say(comparison_view(found, [str(run) for run in runs]))
    write_json(json, {**plain(found), "said": said})
    raise typer.Exit(status)
