"""With a seed all follows from it: the batches, every random draw, on any number of workers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from feedline.errors import StateError
from feedline.loader import DataLoader
from sets import Drawing, Sized, plain, through_json
from slow import slow

SCHEDULE = "8x1@4,12x2@6"


def states() -> tuple[Any, ...]:
    """The random states of this process."""
    array = np.random.get_state()
    return (
        torch.get_rng_state().tolist(),
        [array[0], array[1].tolist(), *array[2:]],
        random.getstate(),
    )


def epochs(count: int, data: Any = None, **options: Any) -> list[Any]:
    usual = {"batch_size": 4, "shuffle": True, "seed": 3}
    with DataLoader(data or Drawing(), **{**usual, **options}) as loader:
        return [[plain(batch) for batch in loader] for _ in range(count)]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return epochs(3, num_workers=0)


WAYS = [(1, "fork"), (2, "forkserver"), *slow((2, "fork"), (1, "forkserver"), (2, "spawn"))]


@pytest.mark.parametrize(("workers", "method"), WAYS)
def test_batches_and_draws_are_the_same_everywhere(
    workers: int, method: str, expected: list[Any]
) -> None:
    torch.manual_seed(workers)
    random.seed(workers)
    assert epochs(3, num_workers=workers, start_method=method) == expected


def test_draws_differ_by_epoch_and_seed(expected: list[Any]) -> None:
    assert len({repr(epoch) for epoch in expected}) == 3
    assert epochs(1, seed=4)[0] != expected[0]
    same_order = epochs(2, shuffle=False)
    assert [b[1][0] for b in same_order[0]] == [b[1][0] for b in same_order[1]]
    assert [b[1][1] for b in same_order[0]] != [b[1][1] for b in same_order[1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_states_of_process_are_unchanged(workers: int) -> None:
    with DataLoader(Drawing(), 4, shuffle=True, seed=3, num_workers=workers) as loader:
        before = states()
        for _ in loader:
            assert states() == before
        loader.state_dict()
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
        next(iter(loader))
        assert states() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_any_epoch_can_be_requested(workers: int, expected: list[Any]) -> None:
    with DataLoader(Drawing(), 4, shuffle=True, seed=3, num_workers=workers) as loader:
        for epoch in (2, 0, 1, 1):
            loader.set_epoch(epoch)
            assert [plain(batch) for batch in loader] == expected[epoch]
        loader.set_epoch(1)
        assert plain(next(iter(loader))) == expected[1][0]
        loader.set_epoch(2)
        assert [plain(batch) for batch in loader] == expected[2]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_schedule_reaches_the_dataset_exact_to_the_batch(workers: int) -> None:
    with DataLoader(Sized(), seed=1, schedule=SCHEDULE, num_workers=workers) as loader:
        for size, rows, steps in ((8, 4, 6), (12, 6, 4), (12, 6, 4)):
            assert len(loader) == steps
            seen = [sizes.tolist() for sizes, _ in loader]
            assert seen == [[size] * rows] * (steps - 1) + [[size] * (23 - rows * (steps - 1))]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_size_set_within_epoch_applies_to_next_batch(workers: int) -> None:
    with DataLoader(
        Sized(), 4, seed=1, schedule=SCHEDULE, shuffle=True, num_workers=workers
    ) as loader:
        seen, draws = [], []
        for step, (sizes, sample) in enumerate(loader):
            seen.append(set(sizes.tolist()))
            draws.append(plain(sample))
            if step in (0, 3):
                loader.set_image_size(20 if step == 0 else None)
        assert seen == [{8}, {20}, {20}, {20}, {8}, {8}]
    with DataLoader(Sized(), 4, seed=1, schedule=SCHEDULE, shuffle=True) as plain_one:
        assert draws == [plain(sample) for _, sample in plain_one]


@pytest.mark.parametrize("workers", [0, 2])
def test_state_at_any_position_resumes_with_sizes_and_draws(workers: int) -> None:
    options: dict[str, Any] = {"seed": 1, "schedule": SCHEDULE, "shuffle": True}
    with DataLoader(Sized(), **options, num_workers=2) as loader:
        seen, saved = [], []
        for _ in range(2):
            for batch in loader:
                seen.append(plain(batch))
                if len(seen) == 2:
                    loader.set_image_size(9)
                saved.append(loader.state_dict())
    for place, state in list(enumerate(saved, 1))[1:]:
        with DataLoader(Sized(), **options, num_workers=workers) as other:
            other.load_state_dict(through_json(state))
            assert [plain(batch) for batch in other] == seen[place : 6 if place <= 6 else 10]


def test_a_seed_decides_the_draws_with_a_sampler_too() -> None:
    def draws(**options: Any) -> list[Any]:
        with DataLoader(Drawing(), 4, sampler=[3, 1, 2, 0], **options) as loader:  # type: ignore[arg-type]
            return [plain(batch) for _ in range(2) for batch in loader]

    first = draws(seed=5)
    torch.manual_seed(99)
    assert draws(seed=5, num_workers=2) == first
    assert draws(seed=6) != first
    loader = DataLoader(Drawing(), 4, sampler=[3, 1, 2, 0], seed=5)  # type: ignore[arg-type]
    with pytest.raises(StateError, match="seed was 6, is 5"):
        loader.load_state_dict(
            DataLoader(Drawing(), 4, sampler=[3, 1, 2, 0], seed=6).state_dict()  # type: ignore[arg-type]
        )
