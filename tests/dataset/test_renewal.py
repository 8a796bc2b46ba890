"""Workers live on with a dataset that stays as it is, and make way for one that has changed."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sets import Closed, Kept, as_it_is

from feedline.loader import DataLoader


def loader(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, 2, num_workers=2, collate_fn=as_it_is, **options)


def epoch(batches: DataLoader[Any]) -> tuple[Any, set[int]]:
    """What the workers hold, all the same, and who they were."""
    samples = [sample for batch in batches for sample in batch]
    assert len(samples) == 4
    values = [value.tolist() if hasattr(value, "tolist") else value for value, _ in samples]
    assert all(value == values[0] for value in values)
    return values[0], {pid for _, pid in samples}


def set_attribute(data: Kept) -> None:
    data.value = "other"


def change_in_place(data: Kept) -> None:
    data.value[1] = 5


def change_within(data: Kept) -> None:
    data.value["a"][0].append(7)


def change_last_byte(data: Kept) -> None:
    data.value.view(-1)[-1] += 1


CHANGES: dict[str, tuple[Any, Callable[[Kept], None]]] = {
    "attribute": ("one", set_attribute),
    "tensor": (torch.arange(5), change_in_place),
    "array": (np.arange(5), change_in_place),
    "array of kilobytes": (np.arange(5000), change_in_place),
    "turned tensor": (torch.arange(6.0).view(2, 3).t(), change_in_place),
    "list in a list": ({"a": [[1, 2]]}, change_within),
    "large tensor": (torch.zeros(1000, 100, dtype=torch.uint8), change_last_byte),
}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_between_epochs_is_seen_in_the_next(name: str, persistent: bool) -> None:
    value, change = CHANGES[name]
    data = Kept(copy.deepcopy(value))
    with loader(data, persistent_workers=persistent) as batches:
        first, before = epoch(batches)
        for _ in range(3):
            assert epoch(batches)[0] == first
            assert set(batches.worker_pids) >= before
        change(data)
        then, after = epoch(batches)
        wanted = data.value.tolist() if hasattr(data.value, "tolist") else data.value
        assert then == wanted
        assert then != first
        assert not before & after


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_change_is_seen_by_workers_that_got_the_dataset_by_pickle(method: str) -> None:
    data = Kept(torch.arange(3))
    with loader(data, start_method=method) as batches:
        assert epoch(batches)[0] == [0, 1, 2]
        pids = set(batches.worker_pids)  # one may be heard of only later
        assert epoch(batches)[0] == [0, 1, 2]
        assert pids <= set(batches.worker_pids)
        data.value += 1
        assert epoch(batches)[0] == [1, 2, 3]


def test_a_change_that_was_taken_back_is_none() -> None:
    data = Kept([1])
    with loader(data) as batches:
        epoch(batches)
        before = set(batches.worker_pids)
        data.value.append(2)
        data.value.pop()
        epoch(batches)
        assert before <= set(batches.worker_pids)


def test_a_dataset_that_does_not_pickle_has_new_workers_for_each_epoch() -> None:
    data = Closed([1])
    with loader(data) as batches:
        seen: set[int] = set()
        for number in range(3):
            data.value[0] = number
            value, pids = epoch(batches)
            assert value == [number]
            assert not pids & seen
            seen |= pids


def test_persistent_workers_keep_a_dataset_that_does_not_pickle() -> None:
    data = Closed([1])
    with loader(data, persistent_workers=True) as batches:
        epoch(batches)
        before = set(batches.worker_pids)
        data.value[0] = 2
        assert epoch(batches)[0] == [1]
        assert before <= set(batches.worker_pids)


def test_a_change_in_mid_epoch_is_of_the_next_epoch() -> None:
    data = Kept("one")
    with loader(data) as batches:
        samples = []
        for batch in batches:
            samples += batch
            data.value = "two"
        assert {value for value, _ in samples} == {"one"}
        assert epoch(batches)[0] == "two"


def test_renewing_workers_loses_nothing_that_was_skipped_or_has_died() -> None:
    data = Skipping(0)
    with DataLoader(data, 2, num_workers=1, on_error="skip") as batches:
        for number in range(3):
            data.value = number
            batch = next(iter(batches))
            assert batch.tolist() == [number]
        assert len(batches.skipped) == 3


class Skipping(Kept):
    def __getitem__(self, index: int) -> Any:
        if index == 1:
            raise ValueError("not this one")
        return self.value


def test_without_workers_a_change_is_seen_at_once() -> None:
    data = Kept("one")
    batches = iter(DataLoader(data, 2, collate_fn=as_it_is))
    assert next(batches) == [("one", os.getpid())] * 2
    data.value = "two"
    assert next(batches) == [("two", os.getpid())] * 2
