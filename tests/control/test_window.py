"""What a window says of the work of its tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feedline.control.window import StepWindow
from feedline.trace.stage_timings import StageTimings

BEFORE = StageTimings(
    tasks=8, tasks_ms=800, timed=1, timed_ms=100, timed_cpu_ms=20, timed_queued_ms=10
)


def window(before: StageTimings, after: StageTimings) -> StepWindow:
    return StepWindow.between(before, after, phase=None, steps=8, seconds=1, wait_s=0, workers=2)


def test_tasks_that_were_timed_in_it_tell_what_they_take_of_a_core() -> None:
    after = replace(
        BEFORE, tasks=12, tasks_ms=1200, timed=3, timed_ms=300, timed_cpu_ms=180, timed_queued_ms=30
    )
    seen = window(BEFORE, after)
    assert (seen.tasks, seen.tasks_s) == (4, 0.4)
    assert (seen.on_core, seen.queued) == (0.8, 0.1)


def test_where_none_was_timed_those_before_it_tell() -> None:
    seen = window(BEFORE, replace(BEFORE, tasks=12, tasks_ms=1200))
    assert (seen.tasks, seen.tasks_s) == (4, 0.4)
    assert (seen.on_core, seen.queued) == (0.2, 0.1)
    assert seen.blocked_share == pytest.approx(1 - 0.2 / 0.9)


def test_where_nothing_was_timed_ever_all_counts_as_on_a_core() -> None:
    seen = window(StageTimings(), StageTimings(tasks=2, tasks_ms=200))
    assert (seen.on_core, seen.queued, seen.blocked_share) == (None, None, 0.0)
