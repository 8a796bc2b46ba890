"""Bottlenecks of the machine: restricted cores, and threads that compete for them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

import feedline
from samples import Arrays, Computed
from situation import CORES, Outcome, burn, paced, situation, train


def _pinned() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])


def _several() -> bool:
    return CORES > 1 and (os.cpu_count() or 1) > 1


@situation("cpu-quota", "torch", needs=_several)
def one_core(fixed: bool) -> Outcome:
    """Affinity to one core, a worker per core of the machine; fix: all cores."""
    if not fixed:
        _pinned()
    data = Computed(16 * (300 if fixed else 150), 2.0)
    return train(DataLoader(data, 16, num_workers=2), paced(5))


@situation("cpu-quota", "feedline", needs=_several)
def one_core_of_feedline(fixed: bool) -> Outcome:
    """One core allotted by a batch system; fix: all cores."""
    if not fixed:
        _pinned()
        os.environ["SLURM_CPUS_PER_TASK"] = "1"
    data = Computed(16 * (300 if fixed else 150), 2.0)
    return train(feedline.DataLoader(data, 16, num_workers=2), paced(5))


class _Convolved:
    """A transform that computes with torch."""

    def __call__(self, pixels: Any) -> Any:
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None].to(torch.float32)
        for _ in range(4):
            image = torch.nn.functional.avg_pool2d(image, 5, 1, 2)
        return image[0].to(torch.uint8)


def _threads(worker: int) -> None:
    torch.set_num_threads(4 * CORES)


@situation("noisy-threads", "torch", predicts=False)
def threads_in_workers(fixed: bool) -> Outcome:
    """Four threads per core in each worker; fix: one."""
    data = Arrays(1200, 256, _Convolved())
    loader = DataLoader(data, 16, num_workers=CORES, worker_init_fn=None if fixed else _threads)
    return train(loader, paced(5))


@situation("noisy-threads", "torch", predicts=False)
def threads_in_the_trainer(fixed: bool) -> Outcome:
    """Eight threads per core in the trainer; fix: one per core."""
    torch.set_num_threads(CORES if fixed else 8 * CORES)
    layer = torch.nn.Conv2d(3, 32, 5)

    def step(batch: Any) -> None:
        with torch.no_grad():
            layer(batch[0].to(torch.float32))

    return train(DataLoader(Computed(16 * 150, 1.0), 16, num_workers=CORES), step)


def _others() -> None:
    while True:
        burn(100)


@contextlib.contextmanager
def _programs(count: int) -> Iterator[None]:
    """Run `count` other programs."""
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=_others, daemon=True) for _ in range(count)]
    for each in others:
        each.start()
    try:
        yield
    finally:
        for each in others:
            each.kill()


@situation("busy-machine", "torch")
def programs_of_others(fixed: bool) -> Outcome:
    """Three other programs per core; fix: none."""
    with _programs(0 if fixed else 3 * CORES):
        data = Computed(16 * (220 if fixed else 100), 1.0)
        return train(DataLoader(data, 16, num_workers=CORES), paced(16))


@situation("busy-machine", "torch")
def programs_beside_the_step(fixed: bool) -> Outcome:
    """A step that computes on a core, two other programs per core; fix: none."""
    with _programs(0 if fixed else 2 * CORES):
        data = TensorDataset(torch.zeros(6400, 3, 32, 32), torch.zeros(6400))
        return train(DataLoader(data, 64, num_workers=0), lambda batch: burn(20))
