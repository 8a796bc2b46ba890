"""Default number of workers."""

from __future__ import annotations

import pytest

from feedline.engine import defaults
from feedline.engine.defaults import auto_workers
from feedline.throughput.limits import MAX_WORKERS


@pytest.mark.parametrize(
    ("cores", "workers"), [(1, 1), (2, 2), (5, 5), (6, 5), (8, 7), (15, 14), (16, 14), (64, 62)]
)
def test_cores_are_reserved_for_training_on_large_machines(cores: int, workers: int) -> None:
    assert auto_workers(cores) == workers


def test_workers_do_not_exceed_worker_ids() -> None:
    assert auto_workers(10 * MAX_WORKERS) == MAX_WORKERS


MB = 1 << 20


@pytest.mark.parametrize(
    ("available", "batches", "workers"),
    [
        (None, 0, 14),
        (64 << 30, 0, 14),
        (1024 * MB, 0, 8),  # half of it, 64 MB each
        (1024 * MB, 128 * MB, 6),
        (1024 * MB, 154 * MB, 5),
        (1024 * MB, 2048 * MB, 1),
        (0, 0, 1),
    ],
)
def test_workers_and_batches_have_half_of_the_memory(
    available: int | None, batches: int, workers: int
) -> None:
    assert auto_workers(16, available_bytes=available, batches_bytes=batches) == workers


def test_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "available_memory_bytes", lambda: 800)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert defaults.own_memory_bytes() == 200

    def unknown() -> int:
        raise OSError("this machine does not say")

    monkeypatch.setattr(defaults, "available_memory_bytes", unknown)
    assert defaults.own_memory_bytes() is None
