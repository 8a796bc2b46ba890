"""CPU and wall time of tasks in a window."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feedline.throughput.step_window import StepWindow
from feedline.timing.stage_page import StageTimings

BEFORE = StageTimings(
    tasks=8, tasks_ms=800, timed=1, timed_ms=100, timed_cpu_ms=20, timed_queued_ms=10
)


def window(before: StageTimings, after: StageTimings) -> StepWindow:
    return StepWindow.between(before, after, phase=None, steps=8, seconds=1, wait_s=0, workers=2)


def test_timed_tasks_give_cpu_share() -> None:
    after = replace(
        BEFORE, tasks=12, tasks_ms=1200, timed=3, timed_ms=300, timed_cpu_ms=180, timed_queued_ms=30
    )
    seen = window(BEFORE, after)
    assert (seen.tasks, seen.tasks_s) == (4, 0.4)
    assert (seen.on_core, seen.queued) == (0.8, 0.1)


def test_without_timed_tasks_earlier_ones_give_cpu_share() -> None:
    seen = window(BEFORE, replace(BEFORE, tasks=12, tasks_ms=1200))
    assert (seen.tasks, seen.tasks_s) == (4, 0.4)
    assert (seen.on_core, seen.queued) == (0.2, 0.1)
    assert seen.blocked_share == pytest.approx(1 - 0.2 / 0.9)


def test_without_any_timed_task_cpu_share_is_one() -> None:
    seen = window(StageTimings(), StageTimings(tasks=2, tasks_ms=200))
    assert (seen.on_core, seen.queued, seen.blocked_share) == (None, None, 0.0)
