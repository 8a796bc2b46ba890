"""Adapter to torch's DataLoader, for frameworks that rebuild loaders from their parts.

Guarantees: a torch DataLoader built from this one's dataset and batch sampler (e.g. by
skip_first_batches of Accelerate) still yields the inner loader's batches, requested by epoch and
step.
Relies on: the framework passes on what the batch sampler yields, in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from feedline.errors import UsageError
from feedline.loader.torch_samplers import accelerate_processes

__all__ = ["Stepwise"]

_Place = tuple[int, int]  # epoch, step


class Stepwise(torch.utils.data.DataLoader[Any]):
    """Loader whose batches can be skipped without being made.

    For `transformers.Trainer`: return `Stepwise(loader)` from `get_train_dataloader`, and a run
    that resumes within an epoch continues with the next batch.

    Args:
        loader: a feedline.DataLoader with its own order, from `seed` or a schedule.

    Raises:
        UsageError: its order is drawn from samplers.
    """

    def __init__(self, loader: Any) -> None:
        if loader.order is None:
            raise UsageError(
                "Stepwise needs batches by epoch and step, but this loader draws its order from "
                "samplers; set seed= or schedule= on the loader, or use "
                "feedline.integrations.accelerate.prepare(accelerator, loader)"
            )
        self._loader = loader
        super().__init__(
            _Batches(loader),  # type: ignore[arg-type]
            batch_sampler=_PlaceSampler(loader),  # type: ignore[arg-type]
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
        assert isinstance(self.batch_sampler, _PlaceSampler)
        self.batch_sampler.set_epoch(epoch)


class _PlaceSampler:
    """Epoch and step of each batch of an epoch, in order. Every iteration is an epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._epoch: int = loader.state_dict()["epoch"]

    @property
    def batch_sampler(self) -> _PlaceSampler:
        """Itself: transformers looks for set_epoch one level below a loader's batch sampler."""
        return self

    def __len__(self) -> int:
        return int(self._loader.steps_in(self._epoch))

    def __iter__(self) -> Iterator[_Place]:
        epoch, steps = self._epoch, len(self)
        self._epoch += 1
        for step in range(steps):
            yield epoch, step

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch


class _Batches:
    """Batches of a loader by epoch and step. Requests out of order restart the prefetch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = iter(())
        self._next: _Place | None = None

    def __len__(self) -> int:
        return len(self._loader.dataset)

    def __getitems__(self, place: _Place) -> Any:
        epoch, step = place
        if place != self._next:
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
