"""Position of a loader: the next batch, all following batches, and moves to other batches.

Three classes derive from LoaderPosition: PlannedPosition, for an order planned from a seed,
IterablePosition, for an IterableDataset, whose upcoming batches are unknown, and
`sampled_position.SampledPosition`, for torch's samplers.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import StateError, UsageError
from feedline.loader.random_states import RandomStates
from feedline.loader.state import Position, damaged_state_error, read_position
from feedline.loader.torch_samplers import has_state
from feedline.order.batch_spec import BatchSpec
from feedline.order.sample_order import Order
from feedline.order.schedule import Phase, is_count
from feedline.order.seeds import mix

__all__ = ["IterablePosition", "LoaderPosition", "PlannedPosition"]

_Self = TypeVar("_Self", bound="LoaderPosition")
_ITERATOR, _DATASET = "iterator_state", "dataset_state"


class LoaderPosition:
    """Position of one iteration at a time. An iteration is one epoch from the position on.

    If an iteration is left after its first batch, the next iteration is the next epoch, as in
    torch; if it is left earlier, the next iteration is the same epoch. After a state is loaded, the
    next iteration continues the epoch.
    """

    stops_after_epoch = False
    """True if upcoming batches end with the current epoch; if False, a planned order continues."""

    def __init__(self) -> None:
        self.current = Position()  # position of the next batch
        self.restored_step = 0  # step of the next epoch at which a loaded state continues
        self.steps_to_skip = 0
        """Number of batches at the beginning of the next epoch that `set_step` skips."""
        self._has_delivered = False  # True if a delivery was the last change of `current`

    @property
    def phase(self) -> Phase:
        """Phase at the position."""
        return self.phase_in(self.current.epoch)

    @property
    def seed(self) -> int:
        """Seed of this rank's workers in the epoch, 64 bits; 0 if torch draws their seeds."""
        return 0

    def phase_in(self, epoch: int) -> Phase:
        """Phase of an epoch."""
        raise NotImplementedError

    def steps(self, epoch: int) -> int:
        """Number of batches of an epoch; raises TypeError if the sampler has no length."""
        raise NotImplementedError

    # Iteration

    def begin(self) -> bool:
        """Begin an iteration. Return True if prefetched batches are stale."""
        raise NotImplementedError

    def upcoming(self) -> Iterator[BatchSpec]:
        """Batches from the position on, in order."""
        return iter(())

    def reopen_if_reordered(self) -> bool:
        """Reopen the epoch if its order was changed before its first batch. Return True if so."""
        return False

    def is_at_end(self) -> bool:
        """Return True if the epoch has no batches left; False if that is unknown."""
        return False

    def record_delivery(self, batch: BatchSpec) -> None:
        """Move past a batch that was delivered, or replaced by an exception.

        If Ctrl-C interrupts the call, the batch is either recorded completely or not at all.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """End the iteration, at the end of the epoch or earlier. The next epoch follows."""
        self._move_to_epoch(self.current.epoch + 1)

    def _move_to_epoch(self, epoch: int) -> None:
        """Set the position to the beginning of an epoch."""
        raise NotImplementedError

    @property
    def _has_open_epoch(self) -> bool:
        raise NotImplementedError

    def fork(self: _Self) -> _Self | None:
        """Fork the position for the iteration in progress, which then continues independently.

        Return None if the iteration has no epoch open: its first `next` then begins whichever epoch
        is next. After a fork, move `self` to another epoch; an open epoch belongs to the fork.
        """
        return copy.copy(self) if self._has_open_epoch else None

    # Moves: they return True if upcoming batches change

    def set_order(self, order: Order | None, generator: Any) -> bool:
        """Continue with the current order of a loader, or its generator for seeds."""
        return False

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration as `epoch`.

        If the position is already in this epoch, e.g. from a state, its step is kept.
        """
        if not self._has_delivered and epoch == self.current.epoch:
            return False
        step = 0 if self._has_delivered else self.steps_to_skip
        self._move_to_epoch(epoch)
        if step:
            self.set_step(step)
        return True

    def set_step(self, step: int) -> bool:
        """Begin the next iteration at a step of its epoch, but not before that of a loaded state.

        A state saved at the end of an epoch counts as the beginning of the next.
        """
        raise NotImplementedError

    def set_image_size(self, image_size: int | None) -> bool:
        """Set the image size of all following batches. None returns to the schedule."""
        changed = image_size != self.current.image_size
        self.current = replace(self.current, image_size=image_size)
        return changed

    # State

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Position as a state, with the values of `state.identity_of`."""
        return {**self.current.as_state(), **identity}

    def load_state(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        """Continue with the batches not yet delivered in a state; raises StateError."""
        raise NotImplementedError


class PlannedPosition(LoaderPosition):
    """Position in a planned order of all epochs. Its states are the same on every rank."""

    def __init__(self, order: Order, *, endless: bool) -> None:
        super().__init__()
        self._order = order
        self.endless = endless
        """True if upcoming batches continue after the schedule. If False, they end with it, and
        later epochs continue one at a time."""
        self._upcoming_until: int | None = 0  # epoch after the latest `upcoming`; None: endless

    def phase_in(self, epoch: int) -> Phase:
        return self._order.schedule.phase_at(epoch)

    def steps(self, epoch: int) -> int:
        return self._order.steps(epoch)

    @property
    def seed(self) -> int:
        return mix(self._order.seed, self.current.epoch, self._order.rank)

    def begin(self) -> bool:
        was_left_early = self._has_delivered and not self.is_at_end()
        if self._has_delivered:
            self.finish()
        until = self._upcoming_until
        return was_left_early or (until is not None and self.current.epoch >= until)

    def upcoming(self) -> Iterator[BatchSpec]:
        start = self.current
        until: int | None = None
        if self.stops_after_epoch:
            until = start.epoch + 1
        elif not self.endless:
            until = max(self._order.schedule.epochs, start.epoch + 1)
        self._upcoming_until = until
        return self._batches(start, until)

    def _batches(self, start: Position, until: int | None) -> Iterator[BatchSpec]:
        epoch, step, image_size = start.epoch, start.step, start.image_size
        while until is None or epoch < until:
            for k in range(step, self._order.steps(epoch)):
                batch = self._order.batch(epoch, k)
                yield batch if image_size is None else replace(batch, image_size=image_size)
            epoch, step = epoch + 1, 0

    def is_at_end(self) -> bool:
        return self.current.step >= self._order.steps(self.current.epoch)

    def record_delivery(self, batch: BatchSpec) -> None:
        self._set(self.current.at_epoch(batch.epoch).at_step(batch.step + 1), delivered=True)

    def _move_to_epoch(self, epoch: int) -> None:
        self.restore(self.current.at_epoch(epoch))

    def restore(self, position: Position) -> None:
        """Set the position. The current iteration, or a new one, continues there."""
        self._set(position, delivered=False)

    def _set(self, position: Position, *, delivered: bool) -> None:
        step = 0 if delivered else position.step
        # One statement: Python raises KeyboardInterrupt only in calls, so it is done or not.
        self._has_delivered, self.steps_to_skip, self.restored_step, self.current = (
            delivered,
            0,
            step,
            position,
        )

    @property
    def _has_open_epoch(self) -> bool:
        return self._has_delivered

    def set_order(self, order: Order | None, generator: Any) -> bool:
        if order is None or order == self._order:
            return False
        if not self._has_delivered and self.current.step and order.length != self._order.length:
            raise UsageError(
                f"the dataset has {order.length} samples, but had {self._order.length} in the "
                "state from which this epoch continues; restore the dataset, or start over with "
                "set_epoch"
            )
        self._order = order
        return True

    def set_step(self, step: int) -> bool:
        before = self.current
        at_end = self.restored_step >= self._order.steps(before.epoch)
        if self._has_delivered or (at_end and step < self.restored_step):
            self.finish()
        skipped = self.current.at_step(self.restored_step).skip_to(step)
        self.current = skipped.at_step(min(step, self._order.steps(skipped.epoch)))
        self.steps_to_skip = step
        return self.current != before

    def load_state(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        position = read_position(state, identity)
        steps = self._order.steps(position.epoch)
        if position.step > steps:
            raise StateError(
                f"cannot resume: the state is at step {position.step} of an epoch with {steps} "
                "steps"
            )
        self.restore(position)


class IterablePosition(LoaderPosition):
    """Position in the batches of an IterableDataset, made by torch's engine.

    On resume the delivered batches are drawn again from the recorded random states and discarded:
    exact for a deterministic dataset, at the cost of its work. An exception that replaces a batch
    is a step like a batch. Without workers the state of a dataset or iterator with `state_dict` and
    `load_state_dict` is used instead. `loader`, whose attributes torch's engine reads, is
    referenced weakly.
    """

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        super().__init__()
        self.loader_ref = weakref.ref(loader)
        self.raised: list[int] = []  # steps of the epoch that were replaced by an exception
        self.start: RandomStates | None = None  # random states at the beginning of the open epoch
        self.loaded_state: Mapping[str, Any] | None = None
        """Loaded state from which the engine will open the epoch; None afterwards."""
        self.samples: Any = None  # iterator over the dataset of an epoch without workers

    @property
    def loader(self) -> TorchDataLoader[Any]:
        """Loader whose attributes torch's engine reads."""
        loader = self.loader_ref()
        assert loader is not None, "an iterator keeps its loader alive"
        return loader

    def phase_in(self, epoch: int) -> Phase:
        return Phase(epochs=1)

    def steps(self, epoch: int) -> int:
        return TorchDataLoader.__len__(self.loader)

    def begin(self) -> bool:
        if self.loaded_state is None and self.current.step:
            self.finish()
        return True

    def open(self, start: RandomStates, samples: Any) -> None:
        """Record that the engine has opened the epoch."""
        self.start, self.samples, self.loaded_state = start, samples, None

    def record_delivery(self, batch: BatchSpec | None) -> None:
        self.current = self.current.at_step(self.current.step + 1)

    def record_exception(self) -> None:
        """Move past a batch that an exception replaced."""
        self.raised.append(self.current.step)
        self.record_delivery(None)

    def _move_to_epoch(self, epoch: int) -> None:
        self.start = self.loaded_state = self.samples = None
        self.raised = []
        self.current = Position(epoch=epoch)

    @property
    def _has_open_epoch(self) -> bool:
        return self.start is not None

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration as `epoch`; calls `set_epoch` of the dataset if it exists."""
        set_epoch = getattr(self.loader.dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        if epoch == self.current.epoch:
            return False
        self._move_to_epoch(epoch)
        return True

    def set_step(self, step: int) -> bool:
        raise UsageError(
            "an IterableDataset cannot skip its first batches without making them; skip its first "
            "samples in its __iter__, or load a state"
        )

    def set_image_size(self, image_size: int | None) -> bool:
        raise UsageError(
            "an IterableDataset cannot be given an image size: torch's engine makes its batches "
            "ahead, without one. Use a map-style Dataset"
        )

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        if self.loaded_state is not None:
            return dict(self.loaded_state)
        start = self.start or RandomStates.capture(None, self.loader.generator)
        state: dict[str, Any] = {
            **super().state(identity),
            "raised": list(self.raised),
            "random": start.as_json(),
        }
        if self.loader.num_workers == 0:
            dataset: Any = self.loader.dataset
            if has_state(self.samples):
                state[_ITERATOR] = self.samples.state_dict()
            elif has_state(dataset):
                state[_DATASET] = dataset.state_dict()
        return state

    def load_state(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        position = read_position(state, identity)
        if not isinstance(state.get("random"), Mapping):
            raise damaged_state_error("'random'")
        raised = state.get("raised")
        if not isinstance(raised, list) or not all(
            is_count(step) and step < position.step for step in raised
        ):
            raise damaged_state_error("'raised'")
        self.loaded_state = dict(state)
        self.raised = list(raised)
        self.current = position

    def dataset_state(self) -> tuple[Any, Any]:
        """State of the dataset and state of its iterator in a loaded state; None if missing."""
        assert self.loaded_state is not None
        return self.loaded_state.get(_DATASET), self.loaded_state.get(_ITERATOR)
