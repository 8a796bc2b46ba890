"""Stepwise: batches by epoch and step, in loaders rebuilt from its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data

from feedline.integrations.transformers import Stepwise

STEPS = 4


class Loader:
    """Yields its positions as batches, and records when it is repositioned."""

    def __init__(self) -> None:
        self.dataset, self.order = range(STEPS * 8), "of any kind"
        self.place = (0, 0)
        self.sent: list[tuple[int, int]] = []

    def steps_in(self, epoch: int) -> int:
        return STEPS

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while self.place[1] < STEPS:
            given, self.place = self.place, (self.place[0], self.place[1] + 1)
            yield given
        self.place = (self.place[0] + 1, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.place[0], "step": self.place[1], "seed": 7}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["seed"] == 7
        self.place = (state["epoch"], state["step"])
        self.sent.append(self.place)


class Skipping(list[Any]):
    """A batch sampler without the first places, as skip_first_batches makes one."""

    def __init__(self, inner: Any, first: int) -> None:
        super().__init__(list(inner)[first:])


def epoch(number: int, first: int = 0) -> list[tuple[int, int]]:
    return [(number, step) for step in range(first, STEPS)]


def taken_apart(loader: Stepwise, first: int) -> torch.utils.data.DataLoader[Any]:
    """A stock loader of the rest of an epoch, from the parts of another."""
    return torch.utils.data.DataLoader(
        loader.dataset,
        batch_sampler=Skipping(loader.batch_sampler, first),
        collate_fn=loader.collate_fn,
    )


def test_epochs_follow_each_other_without_a_seek() -> None:
    inner = Loader()
    loader = Stepwise(inner)
    assert [list(loader) for _ in range(3)] == [epoch(0), epoch(1), epoch(2)]
    assert inner.sent == []
    assert len(loader) == STEPS
    assert len(loader.dataset) == len(inner.dataset)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [1, 3])
def test_loader_rebuilt_from_parts_gives_remaining_batches(first: int) -> None:
    inner = Loader()
    loader = Stepwise(inner)
    loader.set_epoch(2)
    assert list(taken_apart(loader, first)) == epoch(2, first)
    loader.set_epoch(3)
    assert list(loader) == epoch(3)
    assert inner.sent == [(2, first)], "nothing is made that was skipped, and no epoch again"


def test_epochs_may_come_in_any_order_and_be_left_early() -> None:
    loader = Stepwise(Loader())
    for number in (5, 1, 1):
        loader.set_epoch(number)
        batches = iter(loader)
        assert next(batches) == (number, 0)
        assert next(batches) == (number, 1)
    loader.set_epoch(4)
    assert list(loader) == epoch(4)


def test_restored_loader_begins_with_its_epoch() -> None:
    inner = Loader()
    inner.place = (3, 2)
    assert list(Stepwise(inner)) == epoch(3)
