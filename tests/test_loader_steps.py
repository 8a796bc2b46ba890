"""Leaving out the first batches of an epoch, for any order that a loader has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from feedline import DataLoader
from feedline.errors import UsageError

ORDERS: list[dict[str, Any]] = [
    {"shuffle": True},
    {"shuffle": True, "in_order": False},
    {"shuffle": True, "generator": 5},
    {"sampler": range(19, -1, -1)},
    {"shuffle": True, "seed": 3},
    {"schedule": "ownx3"},
]


class Sevens(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter([7] * 9)


def made(order: dict[str, Any]) -> DataLoader[Any]:
    torch.manual_seed(0)
    options = {"num_workers": 1, **order}
    if "generator" in options:
        options["generator"] = torch.Generator().manual_seed(options["generator"])
    return DataLoader(list(range(20)), 3, **options)


def rows(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.fixture(params=ORDERS, ids=str)
def order(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def epochs(order: dict[str, Any]) -> list[list[list[int]]]:
    with made(order) as loader:
        return [rows(loader) for _ in range(3)]


def test_the_rest_of_the_epoch_comes_and_then_the_next(
    order: dict[str, Any], epochs: list[list[list[int]]]
) -> None:
    with made(order) as loader:
        loader.set_step(2)
        assert rows(loader) == epochs[0][2:]
        assert rows(loader) == epochs[1]
        loader.set_step(99)
        assert rows(loader) == []


def test_a_state_holds_the_step_and_can_be_gone_on_from(
    order: dict[str, Any], epochs: list[list[list[int]]]
) -> None:
    with made(order) as loader:
        loader.set_step(2)
        state = loader.state_dict()
    for step in (2, 4):
        with made(order) as loader:
            loader.load_state_dict(state)
            loader.set_step(step)
            assert loader.state_dict()["step"] == step
            assert rows(loader) == epochs[0][step:]
    with made(order) as loader:
        loader.load_state_dict(state)
        with pytest.raises(UsageError, match=r"step 2 of epoch 0 by a state.*begin at step 1"):
            loader.set_step(1)
        assert rows(loader) == epochs[0][2:]


def test_an_iteration_under_way_goes_on_by_itself(
    order: dict[str, Any], epochs: list[list[list[int]]]
) -> None:
    with made(order) as loader:
        earlier = iter(loader)
        first = rows([next(earlier), next(earlier)])
        loader.set_step(3)
        if "generator" not in order:  # from which the earlier pass draws once more at its end
            assert rows(loader) == epochs[1][3:]
        assert first + rows(earlier) == epochs[0]


def test_an_iteration_that_has_given_nothing_begins_there(
    order: dict[str, Any], epochs: list[list[list[int]]]
) -> None:
    with made(order) as loader:
        begun = iter(loader)
        loader.set_step(3)
        assert rows(begun) == epochs[0][3:]
        assert rows(loader) == epochs[1]


@pytest.mark.parametrize("step", [-1, 1.5, "2", True])
def test_what_is_no_step_is_refused(step: Any) -> None:
    with pytest.raises(UsageError, match="whole number of at least 0"):
        made({}).set_step(step)


def test_an_iterable_dataset_cannot_leave_batches_out() -> None:
    with pytest.raises(UsageError, match="leave its first samples out in its __iter__"):
        DataLoader(Sevens(), 2).set_step(1)
