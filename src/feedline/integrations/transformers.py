"""Adapter for transformers.Trainer, and other loops that skip batches by rebuilding a loader.

To skip batches, such a loop builds another torch DataLoader from the dataset and batch sampler of
its loader, e.g. with `skip_first_batches` of Accelerate.

Guarantees: a loader rebuilt from a `Stepwise` yields the batches of the feedline.DataLoader, made
by feedline's workers.
Relies on: the rebuilt loader passing each value of the batch sampler (epoch and step) to the
dataset, in the same process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from feedline.errors import UsageError
from feedline.loader.torch_samplers import accelerate_processes

_EpochStep = tuple[int, int]  # epoch, step


class Stepwise(torch.utils.data.DataLoader[Any]):
    """torch DataLoader with one key per batch, its epoch and step: skipped batches are not made.

    For `transformers.Trainer`: return `Stepwise(loader)` from `get_train_dataloader`. A run that
    resumes within an epoch then continues with the next batch.

    Args:
        loader: a feedline.DataLoader with its own order, from `seed` or a schedule.

    Raises:
        UsageError: samplers define the loader's order.
    """

    def __init__(self, loader: Any) -> None:
        if loader.order is None:
            raise UsageError(
                "Stepwise requests batches by epoch and step, but samplers define the order of "
                "this loader; set seed= or schedule= on the loader, or use "
                "feedline.integrations.accelerate.prepare(accelerator, loader)"
            )
        self._loader = loader
        super().__init__(
            _Batches(loader),  # type: ignore[arg-type]
            batch_sampler=_StepSampler(loader),  # type: ignore[arg-type]
            collate_fn=_identity,
        )

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True, because the loader distributes its samples over the ranks itself.

        Raises:
            UsageError: Accelerate runs another number of processes than the loader has ranks.
        """
        processes = accelerate_processes()
        if processes not in (None, self._loader.ranks):
            raise UsageError(
                f"the loader distributes its samples over {self._loader.ranks} ranks, but "
                f"Accelerate runs {processes} processes; build it after the Accelerator, or pass "
                "rank and world_size"
            )
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Ignore the mark that Accelerate sets on each prepared loader."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        assert isinstance(self.batch_sampler, _StepSampler)
        self.batch_sampler.set_epoch(epoch)


class _StepSampler:
    """Epoch and step of each batch of an epoch, in order. Every iteration is an epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._epoch: int = loader.state_dict()["epoch"]

    @property
    def batch_sampler(self) -> _StepSampler:
        """Itself: transformers looks for set_epoch one level below a loader's batch sampler."""
        return self

    def __len__(self) -> int:
        return int(self._loader.steps_in(self._epoch))

    def __iter__(self) -> Iterator[_EpochStep]:
        epoch, steps = self._epoch, len(self)
        self._epoch += 1
        for step in range(steps):
            yield epoch, step

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch


class _Batches:
    """Dataset of a loader's batches, by epoch and step. A jump restarts the prefetch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = iter(())
        self._next: _EpochStep | None = None

    def __len__(self) -> int:
        return len(self._loader.dataset)

    def __getitems__(self, key: _EpochStep) -> Any:
        epoch, step = key
        if key != self._next:
            self._seek(epoch, step)
        self._next = None  # until the batch has arrived
        batch = next(self._batches)
        self._next = epoch, step + 1
        return batch

    def _seek(self, epoch: int, step: int) -> None:
        loader = self._loader
        if epoch and self._next == (epoch - 1, loader.steps_in(epoch - 1)):
            next(self._batches, None)  # ends the epoch: prefetched batches stay
        state = loader.state_dict()
        if step or (state["epoch"], state["step"]) != (epoch, step):
            loader.load_state_dict({**state, "epoch": epoch, "step": step})
        self._batches = iter(loader)


def _identity(batch: Any) -> Any:
    return batch
