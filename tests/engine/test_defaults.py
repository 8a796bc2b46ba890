"""How many workers a loader begins with where no one says."""

from __future__ import annotations

import pytest

from feedline.engine.board import MAX_SEATS
from feedline.engine.defaults import auto_workers


@pytest.mark.parametrize(
    ("cores", "workers"), [(1, 1), (2, 2), (5, 5), (6, 5), (8, 7), (15, 14), (16, 14), (64, 62)]
)
def test_cores_are_left_to_the_training_where_there_are_many(cores: int, workers: int) -> None:
    assert auto_workers(cores) == workers


def test_there_are_no_more_workers_than_seats() -> None:
    assert auto_workers(10 * MAX_SEATS) == MAX_SEATS
