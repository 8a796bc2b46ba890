"""Limits of a run."""

from __future__ import annotations

import pytest
from runs import MACHINE, PHASE, UNKNOWN, verdict

from feedline.profile.report_data import build_report
from feedline.profile.report_limits import check_limits
from feedline.timing.run import Run


@pytest.mark.parametrize(
    ("most", "least", "passed"),
    [
        (50.0, None, [True]),
        (41.0, None, [True]),
        (5.0, None, [False]),
        (None, 1000.0, [True]),
        (None, 1000.1, [False]),
        (5.0, 900.0, [False, True]),
    ],
)
def test_limits_pass_or_fail(most: float | None, least: float | None, passed: list[bool]) -> None:
    found = check_limits(build_report(Run(machine=MACHINE), verdict()), most, least)
    assert [each.passed for each in found] == passed


def test_unmeasured_values_neither_pass_nor_fail() -> None:
    found = check_limits(build_report(Run(machine=MACHINE), UNKNOWN), 5.0, 900.0)
    assert [(each.measured, each.passed) for each in found] == [(None, None), (None, None)]
    assert all("not measured" in each.said for each in found)


def test_a_run_of_too_few_steps_neither_passes_nor_fails() -> None:
    facts = build_report(
        Run(machine=MACHINE), verdict(bound="inconclusive", wait_pct=1.0, phases=[PHASE])
    )
    found = check_limits(facts, 5.0, 900.0)
    assert [(each.measured, each.passed) for each in found] == [(1.0, None), (1000.0, None)]
