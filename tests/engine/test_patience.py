"""Who is taken for hung: a worker that stays on one row, and none that goes on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from feeds import expected, feed_on, plan_of, planned, slot_bytes, take
from stepped_crew import SteppedCrew

from feedline.engine import feed as feed_module
from sources import Rows

SOURCE = Rows(12)
PLAN = plan_of(SOURCE, 12)  # one batch, and for one worker one piece


def killed_while(monkeypatch: pytest.MonkeyPatch, row_s: dict[int, float]) -> list[int]:
    """The samples at which a feed with 3.5 s of patience kills the worker, and the batch comes."""
    crew = SteppedCrew(SOURCE, slot_bytes(SOURCE, 12), row_s)
    monkeypatch.setattr(feed_module, "time", SimpleNamespace(monotonic=crew.monotonic))
    feed = feed_on(crew, SOURCE, 12, slots=1, workers=1, timeout_s=3.5)
    feed.start(planned(PLAN))
    assert take(feed, SOURCE) == expected(SOURCE, PLAN)
    return crew.killed


@pytest.mark.parametrize("row_s", [0.4, 1.0, 2.5])
def test_a_worker_that_goes_on_row_by_row_is_not_taken_for_hung(
    row_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert killed_while(monkeypatch, dict.fromkeys(range(12), row_s)) == []


def test_a_worker_that_stays_on_a_row_for_longer_than_its_timeout_is_killed_for_that_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert killed_while(monkeypatch, {5: 6.0}) == [5]
