"""Settings changed while a loader runs take effect, and batches stay identical."""

from __future__ import annotations

import copy
import itertools
import math
import os
import pickle
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from feedline.engine.buffers import WholeBatchBuffers
from feedline.engine.defaults import LiveSettings
from feedline.engine.tasks import BatchTasks
from feedline.errors import ClosedError, UsageError
from feedline.loader import DataLoader
from loader_reading import Seen, planned_epoch, read, seen
from row_sources import Rows
from sets import Counting, Made
from slow import slow


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    """A loader that keeps the fork server, so that the others start in no time."""
    with rows(1):
        yield


def rows(workers: int, **options: Any) -> DataLoader[Any]:
    """A loader of rows, with memory for four batches ahead."""
    options = {"schedule": "8x1@5,6x1@7", "seed": 5, "prefetch": 4, **options}
    return DataLoader(Rows(61), 4, num_workers=workers, **options)


def numbers(index: int) -> torch.Tensor:
    return torch.full((index % 7 + 1,), index)


def whole(workers: int, **options: Any) -> DataLoader[Any]:
    """A loader of whole batches of unlike size."""
    options = {"seed": 5, "shuffle": True, "collate_fn": torch.cat, **options}
    loader = DataLoader(Made(61, numbers), 3, num_workers=min(workers, 2), **options)
    if workers > 2:  # torch warns of more workers than cores
        loader.num_workers = workers
    return loader


def change(loader: DataLoader[Any], chance: random.Random) -> None:
    """Change something, in some way or other."""
    backend = loader._runtime.stream.engine
    changes: list[tuple[str, list[Any]]] = (
        [("num_workers", [1, 2, 3])] if loader.num_workers else []
    )
    if isinstance(loader.dataset, Rows):
        changes += [("prefetch", [None, 1, 2, 4]), ("task_ms", [None, 1e-6, 0.01, 5, 10**400])]
    else:
        changes += [("prefetch_factor", [None, 1, 2, 5]), ("max_in_flight", [None, 1, 3, 20])]
    name, values = chance.choice(changes)
    if name == "max_in_flight":
        backend.apply(prefetch=chance.choice(values))
    else:
        setattr(loader, name, chance.choice(values))


def read_and_change(loader: DataLoader[Any], chance: random.Random) -> Iterator[Any]:
    """An epoch, with changes between its batches and at its ends."""
    change(loader, chance)
    for batch in loader:
        yield batch
        for _ in range(chance.choice([0, 0, 1, 2])):
            change(loader, chance)
    change(loader, chance)


@pytest.mark.parametrize("workers", [0, 1, 2, *slow(4)])
@pytest.mark.parametrize("seed", range(2))
def test_rows_are_equal_for_any_setting_at_any_moment(workers: int, seed: int) -> None:
    chance = random.Random(seed)
    with rows(workers) as loader:
        for epoch in range(2):
            expected = planned_epoch(loader, epoch)
            assert read(read_and_change(loader, chance)) == expected
        assert not loader.worker_deaths


@pytest.mark.parametrize(
    ("workers", "seed", "start"),
    [
        *((workers, seed, None) for workers in (1, 2) for seed in range(2)),
        *slow((4, 0, None), (4, 1, None), (1, 0, "spawn")),
    ],
)
def test_whole_batches_are_equal_for_any_setting_at_any_moment(
    workers: int, seed: int, start: str | None
) -> None:
    chance = random.Random(seed)
    with whole(0) as still, whole(workers, start_method=start) as loader:
        for _ in range(2):
            expected = [batch.tolist() for batch in still]
            assert [batch.tolist() for batch in read_and_change(loader, chance)] == expected
        assert not loader.worker_deaths


def test_held_batches_are_unchanged() -> None:
    """Also batches of slots that were added later."""
    chance = random.Random(3)
    with whole(0) as still, whole(2) as loader:
        expected = list(still)
        kept = list(read_and_change(loader, chance))
    assert all(torch.equal(*both) for both in zip(kept, expected, strict=True))


@pytest.mark.parametrize("before", [{}, {"prefetch": 1, "task_ms": 0.001}])
@pytest.mark.parametrize("after", [{"prefetch": 2, "task_ms": 1e9}, {"task_ms": None}])
def test_state_resumes_with_other_settings(before: dict[str, Any], after: dict[str, Any]) -> None:
    with rows(1, **before) as loader:
        expected = planned_epoch(loader, 0)
        found = [seen(batch) for batch in itertools.islice(loader, 3)]
        loader.task_ms = 0.5
        state = loader.state_dict()
    with rows(1, **after) as loader:
        loader.load_state_dict(state)
        loader.prefetch = 1
        found += read(loader)
    assert found == expected


def test_as_many_rows_are_under_way_as_are_set() -> None:
    with rows(1, schedule=None, image_size=4) as loader:
        batches, backend = iter(loader), loader._runtime.stream.engine
        held = next(batches)
        assert backend.in_flight == 4
        loader.prefetch = 2
        assert backend.in_flight == 4  # batches under way are finished
        for _ in range(3):
            held = next(batches)
        assert backend.in_flight == 2
        loader.prefetch = 3
        assert backend.in_flight == 3
        loader.prefetch = 4  # the initial number
        assert backend.in_flight == 4
        loader.prefetch = 1
        loader.prefetch = None
        assert backend.in_flight == 4
        del held


def test_as_many_whole_batches_are_under_way_as_are_set() -> None:
    with whole(1, prefetch_factor=1) as loader:
        batches, backend = iter(loader), loader._runtime.stream.engine
        held = next(batches)
        assert backend.in_flight == 2  # one for the worker, two that may be held, one of which is
        backend.apply(prefetch=9)
        assert backend.in_flight == 9
        backend.apply(prefetch=None)
        for _ in range(8):
            held = next(batches)
        assert backend.in_flight == 3
        loader.prefetch_factor = 4
        assert backend.in_flight == 6
        del held


def test_memory_of_whole_batches_grows_only_if_more_are_requested() -> None:
    slots = WholeBatchBuffers(0)
    tasks = BatchTasks(slots, max_user_batches=2)
    for settings, max_in_flight, memory in (
        (LiveSettings(workers=2), 6, 6),  # two for each, and those that may be held
        (LiveSettings(workers=2, prefetch=3), 3, 6),
        (LiveSettings(workers=2, prefetch=4), 4, 6),
        (LiveSettings(workers=2, prefetch=7), 7, 9),
        (LiveSettings(workers=3, prefetch_factor=3, prefetch=1), 1, 11),
        (LiveSettings(workers=1, prefetch_factor=3), 5, 11),
    ):
        tasks.resize(settings)
        assert (tasks.max_in_flight(settings), slots.num_slots) == (max_in_flight, memory)


def test_shorter_task_time_makes_more_tasks() -> None:
    with rows(0, schedule=None, image_size=4) as loader:
        batches = iter(loader)
        next(batches)
        loader.task_ms = 1e-6
        assert len(list(batches)) == 15
        # One batch had been made in one task; then there is one task per row.
        assert loader.run.tasks == 1 + 61 - 4
    with rows(0, schedule=None, image_size=4, task_ms=1e-6) as loader:
        next(iter(loader))
        assert loader.run.tasks == 4


def test_settings_survive_other_workers() -> None:
    def settings(loader: DataLoader[Any]) -> LiveSettings:
        return loader._runtime.stream.engine.feed.settings  # type: ignore[attr-defined,no-any-return]

    options: dict[str, Any] = {"schedule": None, "seed": None, "image_size": 4}
    with rows(1, worker_init_fn=abs, **options) as loader:
        assert len(list(loader)) == 16
        assert not loader.worker_pids  # they ended with the epoch
        loader.prefetch, loader.task_ms = 2, 5
        batches = iter(loader)
        next(batches)
        assert settings(loader) == LiveSettings(workers=1, prefetch=2, task_ns=5_000_000)
    with whole(1, seed=None) as loader:
        assert len(list(loader)) == 21
        assert not loader.worker_pids
        loader.prefetch_factor = 5
        batches = iter(loader)
        next(batches)
        assert settings(loader) == LiveSettings(workers=1, prefetch_factor=5)


def test_changed_depth_ends_no_worker() -> None:
    with whole(1) as loader:
        next(iter(loader))
        pids = loader.worker_pids
        loader.prefetch_factor = 5
        assert len(list(loader)) == 21
        assert loader.worker_pids == pids


def test_copy_inherits_settings() -> None:
    with rows(1, task_ms=20) as loader:
        assert loader.task_ms == pickle.loads(pickle.dumps(loader)).task_ms == 20
        loader.prefetch, loader.task_ms = np.int64(2), np.float32(0.5)
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert (copy.prefetch, copy.task_ms) == (2, 0.5)
            assert read(copy) == planned_epoch(loader, 0)
        assert "2 batches (prefetch), in tasks of 0.5 ms (task_ms)" in loader.explain()
    with whole(1) as loader:
        loader.prefetch_factor = 3
        assert pickle.loads(pickle.dumps(loader)).prefetch_factor == 3


BAD_PIECES = [0, -1, math.nan, math.inf, -math.inf, True, "50", [1], 1j, Fraction(0)]


@pytest.mark.parametrize("task_ms", BAD_PIECES)
def test_invalid_task_size_is_rejected(task_ms: Any) -> None:
    said = r"task_ms must be .* above 0 .*, got"
    with pytest.raises(UsageError, match=said):
        rows(0, task_ms=task_ms)
    with pytest.raises(UsageError, match=said):
        whole(0, task_ms=task_ms)
    with rows(0) as loader:
        with pytest.raises(UsageError, match=said):
            loader.task_ms = task_ms
        assert loader.task_ms is None
        assert read(loader) == planned_epoch(loader, 0)


@pytest.mark.parametrize(
    ("prefetch", "said"),
    [
        (0, "prefetch must be a whole number from 1 to 64, got 0"),
        (True, "prefetch must be .* got True"),
        (2.0, r"prefetch must be .* got 2\.0"),
        (math.nan, "prefetch must be .* got nan"),
        (5, "prefetch 5 is larger than 4.*build it with prefetch=5"),
    ],
)
def test_invalid_depth_is_rejected(prefetch: Any, said: str) -> None:
    with rows(0) as loader:
        with pytest.raises(UsageError, match=said):
            loader.prefetch = prefetch
        assert loader.prefetch == 4


@pytest.mark.parametrize("factor", [0, -1, 1025, True, 1.5, "2", math.nan])
def test_invalid_prefetch_factor_is_rejected(factor: Any) -> None:
    with whole(1) as loader:
        with pytest.raises(UsageError, match="prefetch_factor must be None or a whole number"):
            loader.prefetch_factor = factor
        assert loader.prefetch_factor == 2


def test_settings_without_effect_are_rejected() -> None:
    with whole(1) as loader:
        with pytest.raises(
            UsageError, match=r"prefetch 2 has no effect.*dataset engine.*prefetch_f"
        ):
            loader.prefetch = 2
        with pytest.raises(UsageError, match=r"task_ms 5 has no effect .*one task"):
            loader.task_ms = 5
    with whole(0) as loader, pytest.raises(UsageError, match="no effect without workers"):
        loader.prefetch_factor = 2
    with rows(1) as loader, pytest.raises(UsageError, match="prefetch_factor 4 has no effect here"):
        loader.prefetch_factor = 4


def test_an_iterable_dataset_follows_at_the_next_iteration() -> None:
    with DataLoader(Counting(9), 3, num_workers=1) as loader:
        assert len(list(loader)) == 3
        loader.prefetch_factor = 3
        assert len(list(loader)) == 3
        with pytest.raises(UsageError, match=r"prefetch 2 has no effect.*torch's engine"):
            loader.prefetch = 2


@pytest.mark.parametrize("name", ["seed", "schedule", "image_size", "device", "rank", "weights"])
def test_attributes_without_effect_cannot_be_set(name: str) -> None:
    with rows(0) as loader:
        setattr(loader, name, getattr(loader, name))
        with pytest.raises(UsageError) as caught:
            setattr(loader, name, "1")
        assert caught.value.argument == name


@pytest.mark.parametrize(("name", "value"), [("on_error", "ignore"), ("timeout", "long")])
def test_invalid_values_of_attributes_are_refused(name: str, value: str) -> None:
    with rows(0) as loader, pytest.raises(UsageError) as caught:
        setattr(loader, name, value)
    assert caught.value.argument == name


def test_a_closed_loader_is_not_changed() -> None:
    loader = rows(0)
    loader.close()
    with pytest.raises(ClosedError):
        loader.task_ms = 5


def test_invalid_setting_within_epoch_changes_nothing() -> None:
    found: list[Seen] = []
    with rows(2) as loader:
        for batch in loader:
            found.append(seen(batch))
            with pytest.raises(UsageError):
                loader.prefetch = 64
        assert found == planned_epoch(loader, 0)


def test_explain_describes_next_iteration() -> None:
    with DataLoader(TensorDataset(torch.arange(8)), 2) as loader:
        assert "tensor engine" in loader.explain()
        batches = iter(loader)
        next(batches)
        loader.collate_fn = list
        assert "dataset engine" in loader.explain()
        assert len(list(batches)) == 3


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"schedule": "ownx9"}])
def test_workers_can_be_removed_and_added_between_iterations(options: dict[str, Any]) -> None:
    made = Made(12, lambda index: torch.tensor([index, os.getpid()]))
    with DataLoader(made, 3, num_workers=2, shuffle=False, **options) as loader:
        for count in (2, 0, 1, 0):
            loader.num_workers = count
            batches = torch.cat(list(loader))
            assert batches[:, 0].tolist() == list(range(12))
            pids = {int(pid) for pid in batches[:, 1]}
            assert (os.getpid() in pids, len(pids) <= max(count, 1)) == (count == 0, True)
        batches = iter(loader)
        next(batches)
        loader.num_workers = 2
        assert len(list(batches)) == 3
        loader.num_workers = 0
        with copy.copy(loader) as other:
            assert torch.cat(list(other))[:, 0].tolist() == list(range(12))


def test_workers_of_rows_can_be_removed_and_added() -> None:
    with rows(0) as loader:
        epochs = []
        for count in (0, 2, 0):
            loader.num_workers = count
            loader.set_epoch(0)
            epochs.append([part.tolist() for batch in loader for part in batch])
            assert bool(loader.worker_pids) == bool(count)
        assert epochs[0] == epochs[1] == epochs[2]
