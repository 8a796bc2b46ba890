"""A loader that Accelerate prepares, saves and restores as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feedline import DataLoader
from feedline.errors import UsageError

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # Accelerate's and torch's own


def made(length: int = 20, *, world_size: int = 1, drop_last: bool = False) -> DataLoader[Any]:
    return DataLoader(
        range(length),  # type: ignore[arg-type]
        batch_size=8,
        seed=0,
        drop_last=drop_last,
        rank=0,
        world_size=world_size,
    )


@pytest.fixture
def accelerator() -> Iterator[Any]:
    made = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    yield made
    made.free_memory()


def test_it_stays_the_same_object_and_its_end_is_seen(accelerator: Any) -> None:
    loader = made()
    assert accelerator.prepare(loader) is loader
    for _ in range(2):
        ends, rows = [], []
        for batch in loader:
            ends.append(accelerator.gradient_state.end_of_dataloader)
            rows += accelerator.gather_for_metrics(batch).tolist()
        assert ends == [False, False, True]
        assert rows == list(range(20))
        assert not accelerator.gradient_state.in_dataloader


def test_a_loop_that_is_left_early_is_over_for_accelerate(accelerator: Any) -> None:
    loader = accelerator.prepare(made())
    batches = iter(loader)
    next(batches)
    assert accelerator.gradient_state.active_dataloader is loader
    del batches
    assert not accelerator.gradient_state.in_dataloader


def test_save_state_and_load_state_keep_its_place(accelerator: Any, tmp_path: Path) -> None:
    loader = accelerator.prepare(made())
    next(iter(loader))
    accelerator.save_state(str(tmp_path))
    accelerator.free_memory()
    again = accelerator.prepare(made())
    accelerator.load_state(str(tmp_path))
    assert [len(batch) for batch in again] == [8, 4]


def test_another_number_of_processes_is_an_error(accelerator: Any) -> None:
    with pytest.raises(UsageError, match="among 2 and Accelerate runs 1"):
        accelerator.prepare(made(world_size=2))


@pytest.mark.parametrize(
    ("length", "world_size", "remainder"), [(20, 1, 4), (16, 1, 0), (21, 2, 5), (37, 4, 0)]
)
def test_repeated_rows_are_cut_off_where_they_come_last(
    length: int, world_size: int, remainder: int
) -> None:
    assert made(length, world_size=world_size)._unpadded() == remainder
    assert made(length, world_size=world_size, drop_last=True)._unpadded() == 0


def test_without_accelerate_nothing_is_wrapped() -> None:
    batches = iter(())
    assert made().watched(batches, lambda: 0) is batches
