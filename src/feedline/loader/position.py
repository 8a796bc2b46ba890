"""Position of a loader: the next batch, all following batches, and moves to other batches.

Three classes derive from LoaderPosition: PlannedPosition, for an order planned from a seed,
SampledPosition, for torch's samplers, and `iterable_engine.IterablePosition`, for an
IterableDataset, whose upcoming batches are unknown.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from feedline.errors import StateError, UsageError
from feedline.loader.sampled_epoch import EpochSource, SampledEpoch
from feedline.loader.state import Position, damaged_state_error, pack, require_entries, unpack
from feedline.loader.torch_samplers import epoch_of, sampler_rank_and_world_size, set_epoch
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
        return self.phase_in(self.current.epoch)

    @property
    def seed(self) -> int:
        """Seed of this rank's workers in the epoch, 64 bits; 0 if torch draws their seeds."""
        return 0

    def phase_in(self, epoch: int) -> Phase:
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


_EPOCH = ("drawn", "early", "drawn_seed", "undrawn_seeds", "start", "sampler_state", "upcoming")
"""Entries of a loaded state that `state` returns unchanged until a batch is delivered."""


class SampledPosition(LoaderPosition):
    """Position of a loader whose order torch's samplers define, epoch by epoch.

    The same seeds give the same batches as torch's DataLoader. A state contains the values that
    determine the rest of an epoch: the random states at its beginning, or the sampler's own state,
    and a digest of the delivered batches. The samplers define the order of later epochs.
    """

    def __init__(self, source: EpochSource, schedule: Schedule) -> None:
        super().__init__(schedule)
        self._source = source
        self._rank, self._world_size = sampler_rank_and_world_size(source.sampler)
        self._is_iterating = False  # an iteration has started and not ended
        self._epoch: SampledEpoch | None = None
        self._loaded_state: Mapping[str, Any] | None = None  # until a batch is delivered

    def steps(self, epoch: int) -> int:
        return len(self._source.sampler)  # type: ignore[arg-type]

    @property
    def seed(self) -> int:
        assert self._epoch is not None, "an epoch has no seed before its first iteration"
        return self._epoch.seed

    # Iteration

    def begin(self) -> bool:
        if self.has_delivered:
            self._move_to_epoch(self.current.epoch + 1)
        self._is_iterating = True
        if self._loaded_state is None:
            self._enter(self._source.open(self.current.epoch))
        else:
            self._open_loaded_state(self._loaded_state)
        return True

    def _open_loaded_state(self, state: Mapping[str, Any]) -> None:
        """Open the epoch of a loaded state; at step 0 with the sampler's current settings."""
        epoch = self._epoch
        if epoch is None or not self.restored_step:
            first = self.current.at_step(0)
            epoch = self._source.reopen(state, first, comparable=False, begin=True)
        self._enter(epoch)

    def _enter(self, epoch: SampledEpoch) -> None:
        """Set the position to that of an epoch, or after the batches to skip in it."""
        epoch.skip_to(self.steps_to_skip)
        self._epoch, self.current = epoch, self.current.at_step(epoch.step)

    def reopen_if_reordered(self) -> bool:
        epoch = self._epoch
        if epoch is None or self.has_delivered or self.restored_step:
            return False
        if epoch.sampler_epoch == epoch_of(self._source.sampler):
            return False
        epoch.rng_states.set_generators()
        self._enter(SampledEpoch(self._source, epoch.seed, epoch.undrawn, epoch.rng_states))
        return True

    def is_at_end(self) -> bool:
        if self._epoch is None:
            return False
        self._restart_broken_pass()
        return self._epoch.is_at_end()

    def _restart_broken_pass(self) -> None:
        """Restart a pass over the sampler that an interrupt stopped, or raise a StateError."""
        if (epoch := self._epoch) is None or not epoch.broken:
            return
        at_beginning = not self.has_delivered and self.restored_step == 0
        self._epoch = self._source.reopen(
            epoch.state(), self.current, comparable=True, begin=at_beginning
        )

    def upcoming(self) -> Iterator[BatchSpec]:
        self._restart_broken_pass()
        epoch, phase, number = self._epoch, self.phase, self.current.epoch
        if epoch is None:
            return
        for draw in epoch.undelivered_draws():
            yield BatchSpec(
                epoch=number,
                step=draw.step,
                phase=phase,
                image_size=self.current.image_size or phase.image_size,
                samples=draw.samples,
                padding=0,
                epoch_seed=epoch.seed,
                rank=self._rank,
                is_sampled=True,
                keys=draw.keys,
                stride=1,
            )
            if epoch is not self._epoch:
                return

    def record_delivery(self, batch: BatchSpec) -> None:
        epoch, (number, _, image_size) = self._epoch, self.current
        assert epoch is not None, "a batch was delivered before the epoch was opened"
        last, early_steps = epoch.compute_delivery(batch.step)
        current = Position(number, last.step + 1, image_size)
        # Free of calls: Python raises KeyboardInterrupt only in calls, so Ctrl-C cannot leave these
        # assignments half done.
        epoch.last, epoch.early_steps, self.current = last, early_steps, current
        self.has_delivered, self.restored_step, self.steps_to_skip = True, 0, 0
        self._loaded_state = None

    def finish(self) -> None:
        super().finish()
        self._is_iterating = False

    def _move_to_epoch(self, epoch: int) -> None:
        first = self.current.at_epoch(epoch)
        # Free of calls: Python raises KeyboardInterrupt only in calls, so Ctrl-C cannot leave these
        # assignments half done.
        self._is_iterating = self._is_iterating and not self.has_delivered
        self.has_delivered, self.restored_step, self.steps_to_skip = False, 0, 0
        self._epoch, self._loaded_state, self.current = None, None, first

    @property
    def _has_open_epoch(self) -> bool:
        return self._epoch is not None

    # Moves

    def set_order(self, order: Order | None, generator: Any) -> bool:
        self._source.generator = generator
        return False

    def set_epoch(self, epoch: int) -> bool:
        set_epoch(self._source.sampler, epoch)
        is_new = super().set_epoch(epoch)
        if is_new and self._is_iterating:  # the current iteration, without a batch yet
            self._enter(self._source.open(epoch))
        return is_new

    def _first_step(self) -> int:
        # A pass over the sampler in progress cannot go back.
        return self.current.step if self._is_iterating else self.restored_step

    def _skip(self) -> bool:
        if self._is_iterating and self._epoch is not None:
            self._restart_broken_pass()
            self._enter(self._epoch)
        return True

    # State

    def state(self) -> dict[str, Any]:
        """Entries of a state, JSON-able if the sampler's own state is. Nothing is drawn for it.

        Between two epochs it contains the random states that determine the next one.
        """
        with suppress(StateError):  # the next batch raises it
            self._restart_broken_pass()
        state = {
            **super().state(),
            "early": [],
            "rank": self._rank,
            "world": self._world_size,
            "drawn": 0,
            "drawn_seed": None,
            "undrawn_seeds": self._source.next_undrawn,
            "upcoming": None,
            "steps_to_skip": max(0, self.steps_to_skip - self.current.step) and self.steps_to_skip,
        }
        epoch, loaded_state = self._epoch, self._loaded_state
        unmoved = self.current.step == self.restored_step
        sampler_epoch = epoch_of(self._source.sampler)
        if (
            loaded_state
            and unmoved
            and (epoch is None or loaded_state["start"]["epoch"] == sampler_epoch)
        ):
            return state | {name: loaded_state[name] for name in _EPOCH}
        if epoch is None:
            start = self._source.start(self._source.capture_rng_states())
            return state | {"start": start, "sampler_state": start["sampler"]}
        return state | epoch.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        position = Position.from_state(state)
        require_entries(state, (*_EPOCH, "steps_to_skip"))
        start = state["start"]
        start = {**start, "sampler": pack(unpack(start["sampler"]))}
        state = {**state, "start": start, "sampler_state": pack(unpack(state["sampler_state"]))}
        has_epoch = state["drawn_seed"] is not None
        if not has_epoch and (position.step or state["early"]):
            raise damaged_state_error(state, "drawn_seed")
        share = state.get("rank"), state.get("world")
        comparable = has_epoch and share == (self._rank, self._world_size)
        epoch = self._source.reopen(state, position, comparable=comparable)
        self._source.load_seeds(state)
        self._epoch, self._loaded_state = epoch if has_epoch else None, state
        self.restored_step, self.steps_to_skip = position.step, state["steps_to_skip"]
        self.has_delivered, self.current = False, position
        if self._is_iterating:
            self._open_loaded_state(state)
