"""Position of a loader: the next batch, all following batches, and moves to other batches.

Three classes derive from LoaderPosition: PlannedPosition, for an order planned from a seed,
`sampled_position.SampledPosition`, for torch's samplers, and `iterable_engine.IterablePosition`,
for an IterableDataset, whose upcoming batches are unknown.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from feedline.errors import StateError, UsageError
from feedline.loader.state import Position
from feedline.order.batch_spec import BatchSpec
from feedline.order.sample_order import Order
from feedline.order.schedule import Phase, Schedule
from feedline.order.seeds import mix

_Self = TypeVar("_Self", bound="LoaderPosition")


class LoaderPosition:
    """Position of one iteration at a time. An iteration is one epoch from the position on.

    If an iteration is left after its first batch, the next iteration is the next epoch, as in
    torch; if it is left earlier, the next iteration is the same epoch. After a state is loaded, the
    next iteration continues the epoch.
    """

    stops_after_epoch = False
    """True if upcoming batches end with the current epoch; if False, a planned order continues."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.current = Position()  # position of the next batch
        self.restored_step = 0  # step of the next epoch at which a loaded state continues
        self.steps_to_skip = 0
        """Number of batches at the beginning of the next epoch that `set_step` skips."""
        self.has_delivered = False
        """True if `current` last changed by a delivery (of a batch, or of an exception instead)."""

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
        return self._schedule.phase_at(epoch)

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
        if not self.has_delivered and epoch == self.current.epoch:
            return False
        step = 0 if self.has_delivered else self.steps_to_skip
        self._move_to_epoch(epoch)
        if step:
            self.set_step(step)
        return True

    def set_step(self, step: int) -> bool:
        """Begin the next iteration at a step of its epoch, but not before that of a loaded state.

        A state saved at the end of an epoch counts as the beginning of the next.
        """
        goes_back = step < self.restored_step == self.current.step
        is_new = self.has_delivered or (goes_back and self.is_at_end())
        if is_new:
            self._move_to_epoch(self.current.epoch + 1)
        first = self._first_step()
        if step < first:
            raise UsageError(
                f"cannot begin at step {step}: a loaded state is at step {first} of epoch "
                f"{self.current.epoch}; iterate the loader, or call set_epoch first"
            )
        self.steps_to_skip = step
        return self._skip() or is_new

    def _first_step(self) -> int:
        """First step of the epoch at which the next iteration may begin."""
        return self.restored_step

    def _skip(self) -> bool:
        """Advance by `steps_to_skip`, or to the end of the epoch. Return True if batches change."""
        raise NotImplementedError

    def set_image_size(self, image_size: int | None) -> bool:
        """Set the image size of all following batches. None returns to the schedule."""
        changed = image_size != self.current.image_size
        self.current = self.current._replace(image_size=image_size)
        return changed

    # State

    def state(self) -> dict[str, Any]:
        """Entries of a state about the position."""
        return self.current.as_state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the batches not yet delivered in a checked state; raises StateError."""
        raise NotImplementedError


class PlannedPosition(LoaderPosition):
    """Position in a planned order of all epochs. Its states are the same on every rank."""

    def __init__(self, order: Order, *, endless: bool) -> None:
        super().__init__(order.schedule)
        self._order = order
        self.endless = endless
        """True if upcoming batches continue after the schedule. If False, they end with it, and
        later epochs continue one at a time."""
        self._upcoming_until: int | None = 0  # epoch after the latest `upcoming`; None: endless

    def steps(self, epoch: int) -> int:
        return self._order.steps(epoch)

    @property
    def seed(self) -> int:
        return mix(self._order.seed, self.current.epoch, self._order.rank)

    def begin(self) -> bool:
        was_left_early = self.has_delivered and not self.is_at_end()
        if self.has_delivered:
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
                yield batch if image_size is None else batch._replace(image_size=image_size)
            epoch, step = epoch + 1, 0

    def is_at_end(self) -> bool:
        return self.current.step >= self._order.steps(self.current.epoch)

    def record_delivery(self, batch: BatchSpec) -> None:
        position = Position(batch.epoch, batch.step + 1, self.current.image_size)
        self._set(position, delivered=True)

    def _move_to_epoch(self, epoch: int) -> None:
        self.restore(self.current.at_epoch(epoch))

    def restore(self, position: Position) -> None:
        """Set the position. The current iteration, or a new one, continues there."""
        self._set(position, delivered=False)

    def _set(self, position: Position, *, delivered: bool) -> None:
        step = 0 if delivered else position.step
        # One statement: Python raises KeyboardInterrupt only in calls, so it is done or not.
        self.has_delivered, self.steps_to_skip, self.restored_step, self.current = (
            delivered,
            0,
            step,
            position,
        )

    @property
    def _has_open_epoch(self) -> bool:
        return self.has_delivered

    def set_order(self, order: Order | None, generator: Any) -> bool:
        if order is None or order == self._order:
            return False
        if not self.has_delivered and self.current.step and order.length != self._order.length:
            raise UsageError(
                f"the dataset has {order.length} samples, but had {self._order.length} in the "
                "state from which this epoch continues; restore the dataset, or start over with "
                "set_epoch"
            )
        self._order, self._schedule = order, order.schedule
        return True

    def _skip(self) -> bool:
        before = self.current
        self.current = before.at_step(min(self.steps_to_skip, self._order.steps(before.epoch)))
        return self.current != before

    def load_state(self, state: Mapping[str, Any]) -> None:
        position = Position.from_state(state)
        steps = self._order.steps(position.epoch)
        if position.step > steps:
            raise StateError(
                f"cannot resume: the state is at step {position.step} of an epoch with {steps} "
                "steps"
            )
        self.restore(position)
