"""A loader that Accelerate prepares, saves and restores as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from feedline.errors import UsageError
from feedline.frameworks.accelerate import Accelerated

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # Accelerate's and torch's own


class Loader(Accelerated, DataLoader[Any]):
    """Counts what it gave of an epoch; its state is that count."""

    device = None

    def __init__(self, length: int = 20, *, world_size: int = 1, drop_last: bool = False) -> None:
        super().__init__(torch.arange(length), batch_size=8, drop_last=drop_last)  # type: ignore[arg-type]
        self.world_size = world_size
        self.given = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self.watched(self._rest(), lambda: len(self) - self.given)

    def _rest(self) -> Iterator[Any]:
        for batch in list(super().__iter__())[self.given :]:
            self.given += 1
            yield batch
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@pytest.fixture
def accelerator() -> Iterator[Any]:
    made = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    yield made
    made.free_memory()


def test_it_stays_the_same_object_and_its_end_is_seen(accelerator: Any) -> None:
    loader = Loader()
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
    loader = accelerator.prepare(Loader())
    batches = iter(loader)
    next(batches)
    assert accelerator.gradient_state.active_dataloader is loader
    del batches
    assert not accelerator.gradient_state.in_dataloader


def test_save_state_and_load_state_keep_its_place(accelerator: Any, tmp_path: Path) -> None:
    loader = accelerator.prepare(Loader())
    next(iter(loader))
    accelerator.save_state(str(tmp_path))
    accelerator.free_memory()
    again = accelerator.prepare(Loader())
    accelerator.load_state(str(tmp_path))
    assert [len(batch) for batch in again] == [8, 4]


def test_another_number_of_processes_is_an_error(accelerator: Any) -> None:
    with pytest.raises(UsageError, match="among 2 and Accelerate runs 1"):
        accelerator.prepare(Loader(world_size=2))


@pytest.mark.parametrize(
    ("length", "world_size", "remainder"), [(20, 1, 4), (16, 1, 0), (21, 2, 5), (37, 4, 0)]
)
def test_repeated_rows_are_cut_off_where_they_come_last(
    length: int, world_size: int, remainder: int
) -> None:
    assert Loader(length, world_size=world_size)._unpadded() == remainder
    assert Loader(length, world_size=world_size, drop_last=True)._unpadded() == 0


def test_without_accelerate_nothing_is_wrapped() -> None:
    batches = iter(())
    assert Loader().watched(batches, lambda: 0) is batches
