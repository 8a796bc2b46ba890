"""Counting in mid-stream, and who counts when."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from feedline.profile.bench.rate import count, endless, family_cpu, settle_down
from feedline.profile.bench.run import TurnPlan, plan_turns


class Batches:
    """Batches of 8 images; remembers how many were taken."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.taken += 1
        return 8


@pytest.mark.parametrize(("ahead", "unit"), [(0, 1), (4, 1), (6, 3)])
def test_prefetched_images_are_not_counted_and_counts_are_whole_units(
    ahead: int, unit: int
) -> None:
    batches, clock = Batches(), itertools.count(5)
    turn = count(batches, ahead=ahead, unit=unit, seconds=0.01, cpu_s=lambda: float(next(clock)))
    counted = batches.taken - ahead - unit
    assert turn.images == 8 * counted > 0
    assert counted % unit == 0
    assert turn.seconds >= 0.01
    assert turn.cpu_s == 1.0
    assert turn.images_per_s == turn.images / turn.seconds


def test_turn_shorter_than_a_batch_counts_one_unit() -> None:
    turn = count(Batches(), ahead=0, unit=2, seconds=1e-9, cpu_s=lambda: 0.0)
    assert turn.images == 16


def test_endless_loader_restarts() -> None:
    loader = [(["a", "b", "c"], [0, 1, 2]), (["d"], [3])]
    assert list(itertools.islice(endless(loader), 5)) == [3, 1, 3, 1, 3]


def test_cpu_time_of_children_is_counted() -> None:
    script = "sum(range(8_000_000)); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        cpu_s = family_cpu()
        before = cpu_s()
        child.stdout.readline()
        assert cpu_s() > before
        child.communicate(os.linesep.encode())
        assert cpu_s() > 0, "one that has ended is passed over"


def test_settling_ends_when_processes_are_idle() -> None:
    settle_down()


@pytest.mark.parametrize("contestants", [1, 2, 4, 6])
@pytest.mark.parametrize("refill_s", [0.0, 0.1, 100.0])
def test_turns_divide_the_time(contestants: int, refill_s: float) -> None:
    turns = plan_turns(contestants, 30.0, refill_s)
    assert turns.rounds * contestants * turns.seconds == pytest.approx(30.0)
    assert turns.rounds >= 3
    if not refill_s:
        assert turns == TurnPlan(5, 6.0 / contestants)
    if refill_s == 100.0:
        assert turns.rounds == 3
