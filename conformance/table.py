"""Print the result of a run as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from outcome import NEEDED_SHARE, EvaluatedTest, Verdict
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from suite import FILES

__all__ = ["show"]

_REPEAT = "To execute this test, run"  # torch's TestCase continues with how to repeat it
_COLUMNS = ("passed", "skipped", "deviation", "not applicable", "unexpected")


def show(console: Console, verdict: Verdict, whole: bool) -> None:
    """Print the counts by file, the tests that did not pass with reasons, and the share passed.

    Args:
        console: output.
        verdict: result to print.
        whole: all tests were run, so that entries without a matching test are reported.
    """
    _by_reason(console, "Skipped", verdict.of("skipped"), lambda test: test.outcome.message)
    _by_reason(console, "Not applicable", verdict.of("not applicable"), _reason)
    _by_reason(console, "Expected deviations", verdict.of("deviation"), _reason)
    _by_reason(console, "Listed, yet passed", verdict.better, _reason)
    _by_reason(console, "UNEXPECTED failures", verdict.of("unexpected"), _failure)
    if whole:
        for entry in verdict.unmatched:
            console.print(f"[yellow]No test matches the entry {escape(entry.test)}[/]")
    console.print(_counts(verdict))
    colour = "green" if verdict.good else "red"
    console.print(
        f"[{colour}]{verdict.passed} of {verdict.applicable} applicable tests passed, "
        f"{verdict.share:.1%} (needed: {NEEDED_SHARE:.0%}); "
        f"{len(verdict.of('unexpected'))} failed unexpectedly[/]"
    )


def _counts(verdict: Verdict) -> Table:
    table = Table("", *(f"[bold]{column}[/]" for column in _COLUMNS), title="Tests")
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for name in FILES:
        here = [test.verdict for test in verdict.tests if test.outcome.test.startswith(name)]
        table.add_row(name, *(str(here.count(column)) for column in _COLUMNS))
    table.add_section()
    table.add_row("all", *(str(len(verdict.of(column))) for column in _COLUMNS))
    return table


def _by_reason(
    console: Console,
    title: str,
    tests: Iterable[EvaluatedTest],
    reason: Callable[[EvaluatedTest], str],
) -> None:
    groups = defaultdict(list)
    for test in tests:
        groups[reason(test)].append(test.outcome.test)
    if not groups:
        return
    table = Table("tests", "reason", title=title, show_lines=True)
    table.columns[0].no_wrap = True
    for why, names in groups.items():
        table.add_row(escape(_by_class(names)), escape(why))
    console.print(table)


def _by_class(names: Iterable[str]) -> str:
    classes = defaultdict(list)
    for name in names:
        *above, test = name.split("::")
        classes[above[-1] if above else ""].append(f"  {test}")
    return "\n".join("\n".join([above, *tests]) for above, tests in classes.items())


def _reason(test: EvaluatedTest) -> str:
    return test.entry.reason if test.entry else ""


def _failure(test: EvaluatedTest) -> str:
    if test.outcome.result == "no result":
        return "its process died before it reported a result"
    message = test.outcome.message.partition(_REPEAT)[0]
    lines = [line for line in message.splitlines() if line.strip()]
    return "\n".join(lines[:3])
