"""`torch.compile` around a loop over a loader, and around `next`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from feedline import DataLoader
from sets import Made


@pytest.fixture
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_compiled_loop_reads_every_batch(workers: int, fresh: None) -> None:
    with DataLoader(Made(8, float), 4, num_workers=workers) as loader:

        @torch.compile(backend="eager")
        def total() -> torch.Tensor:
            return sum(batch.sum() for batch in loader)  # type: ignore[return-value]

        assert [float(total()) for _ in range(2)] == [28.0, 28.0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_compiled_step_reads_one_batch(workers: int, fresh: None) -> None:
    with DataLoader(Made(8, float), 4, num_workers=workers) as loader:
        batches = iter(loader)

        @torch.compile(backend="eager")
        def step() -> torch.Tensor:
            return next(batches).sum() * 2

        assert [float(step()) for _ in range(2)] == [12.0, 44.0]
