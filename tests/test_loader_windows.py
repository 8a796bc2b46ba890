"""A loader whose samples are shuffled in windows, for disks that seek badly."""

from __future__ import annotations

import copy
import json
import pickle
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

from feedline.errors import StateError, UsageError
from feedline.loader import DataLoader
from feedline.order.sample_order import BLOCK_SIZE
from loader_reading import planned_epoch, read
from row_sources import Rows
from sets import Counting

SAMPLES = 4 * BLOCK_SIZE + 76
WINDOW = "window:512"


def loader(workers: int = 0, batch_size: int = 128, **options: Any) -> DataLoader[Any]:
    chosen = {"shuffle": WINDOW, "image_size": 4, "seed": 5, "num_workers": workers, **options}
    return DataLoader(Rows(SAMPLES), batch_size, **chosen)


def labels(made: DataLoader[Any]) -> list[list[int]]:
    return [batch[1].tolist() for batch in made]


def flat(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def blocks(samples: list[int]) -> set[int]:
    return {sample // BLOCK_SIZE for sample in samples}


def test_a_batch_is_of_its_windows_blocks_and_an_epoch_of_all() -> None:
    with loader(2) as made:
        first, second = labels(made), labels(made)
    assert sorted(flat(first)) == list(range(SAMPLES))
    assert first != second
    windows = [blocks(flat(first[k : k + 4])) for k in (0, 4, 8)]
    assert len(windows[0]) in (2, 3)  # three with the short block at the end
    assert all(blocks(batch) <= windows[k // 4] for k, batch in enumerate(first))


@pytest.mark.parametrize(
    ("shuffle", "name"), [("window:513", "window:513"), (True, "shuffled"), (False, "sequential")]
)
def test_state_of_another_order_is_rejected_by_name(shuffle: bool | str, name: str) -> None:
    state = loader().state_dict()
    assert state["sample_order"] == WINDOW
    with pytest.raises(StateError, match=f"order was '{WINDOW}', is '{name}'"):
        loader(shuffle=shuffle).load_state_dict(state)


def test_two_ranks_divide_each_epoch_like_one_rank() -> None:
    alone = labels(loader(batch_size=128))
    ranks = [labels(loader(batch_size=64, rank=rank, world_size=2)) for rank in range(2)]
    together = [sorted(one + other) for one, other in zip(*ranks, strict=True)]
    assert together == [sorted(batch) for batch in alone]
    assert not set(flat(ranks[0])) & set(flat(ranks[1]))


@pytest.mark.parametrize("name", [WINDOW, np.str_(WINDOW)])
def test_a_schedule_brings_the_seed_that_an_order_in_windows_needs(name: str) -> None:
    made = DataLoader(Rows(SAMPLES), 128, name, schedule="4x1,8x1", num_workers=0)  # type: ignore[arg-type]
    state = json.loads(json.dumps(made.state_dict()))
    assert (state["sample_order"], state["seed"]) == (WINDOW, 0)
    next(iter(made))
    made.load_state_dict(state)
    assert read(made) == planned_epoch(made, 0)


def test_any_dataset_can_be_read_in_windows() -> None:
    data = torch.arange(SAMPLES)
    with DataLoader(data, 128, WINDOW, seed=5, num_workers=1) as made:
        assert [batch.tolist() for batch in made] == labels(loader())


@pytest.mark.parametrize("copied", [copy.copy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_copy_reads_in_the_same_windows(copied: Any) -> None:
    made = loader()
    assert labels(copied(made)) == labels(made)


def test_frameworks_see_a_sampler_that_shares_out_and_shuffles() -> None:
    sampler = loader().sampler
    assert isinstance(sampler, DistributedSampler)
    assert sampler.shuffle is True
    assert list(sampler) == flat(labels(loader()))


def test_explain_reports_window_size() -> None:
    assert (
        f"shuffled in windows of 512 samples, blocks of {BLOCK_SIZE}, seed 5" in loader().explain()
    )


@pytest.mark.parametrize("shuffle", ["windows", "window:0", "window:16k", "shuffled", "True", ""])
@pytest.mark.parametrize("options", [{}, {"seed": 0}, {"schedule": "4x1"}])
def test_string_that_names_no_order_is_rejected_with_form(
    shuffle: str, options: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=f"None or \"window:N\", .* got '{shuffle}'"):
        DataLoader(range(10), 2, shuffle, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dataset", "options", "found"),
    [
        (range(10), {}, "add seed=0 or a schedule$"),
        (Rows(10), {"image_size": 4}, "add seed=0"),
        (range(10), {"sampler": [1, 2]}, "remove the sampler and add seed=0"),
        (range(10), {"batch_sampler": [[1], [2]]}, "remove the sampler and add seed=0"),
        (range(10), {"batch_size": None}, "set a batch_size and add seed=0"),
        (range(10), {"batch_size": None, "seed": 1}, "set a batch_size$"),
        (Counting(10), {}, "use a map-style dataset and add seed=0"),
    ],
)
def test_windows_without_feedline_order_raise_with_requirement(
    dataset: Any, options: dict[str, Any], found: str
) -> None:
    with pytest.raises(UsageError, match=rf"'{WINDOW}' .*: {found}"):
        DataLoader(dataset, shuffle=WINDOW, **options)
