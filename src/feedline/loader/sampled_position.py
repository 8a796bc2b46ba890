"""Position of a loader whose order is defined by torch's samplers, epoch by epoch.

Guarantees: the same seeds give the same batches as torch's DataLoader. A state contains the values
that determine the rest of an epoch: the random states at its beginning, or the sampler's own state,
and a digest of the delivered batches. The samplers define the order of later epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from feedline.errors import StateError
from feedline.loader.position import LoaderPosition
from feedline.loader.sampled_epoch import EpochSource, SampledEpoch
from feedline.loader.state import Position, damaged_state_error, pack, unpack
from feedline.loader.torch_samplers import epoch_of, sampler_rank_and_world_size, set_epoch
from feedline.order.batch_spec import BatchSpec
from feedline.order.sample_order import Order
from feedline.order.schedule import Schedule

_EPOCH = ("drawn", "early", "drawn_seed", "undrawn_seeds", "start", "sampler_state", "upcoming")
"""Entries of a loaded state that `state` returns unchanged until a batch is delivered."""


class SampledPosition(LoaderPosition):
    """Position of a loader whose order is defined by samplers."""

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
        """Seed of the open epoch."""
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
        self._enter(self._source.open_again(epoch))
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
            and (epoch is None or loaded_state["start"].get("epoch") == sampler_epoch)
        ):
            return state | {name: loaded_state[name] for name in _EPOCH}
        if epoch is None:
            start = self._source.start(self._source.capture_rng_states())
            return state | {"start": start, "sampler_state": start["sampler"]}
        return state | epoch.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        position, state = Position.from_state(state), _complete(state)
        has_epoch = state["drawn_seed"] is not None
        if not has_epoch and (position.step or state["early"]):
            raise damaged_state_error(state, "drawn_seed")
        share = state.get("rank"), state.get("world")
        comparable = has_epoch and share == (self._rank, self._world_size)
        epoch = self._source.reopen(state, position, comparable=comparable)
        self._source.load_seeds(state)
        self._epoch, self._loaded_state = epoch if has_epoch else None, state
        self.restored_step, self.steps_to_skip = position.step, state.get("steps_to_skip", 0)
        self.has_delivered, self.current = False, position
        if self._is_iterating:
            self._open_loaded_state(state)


def _complete(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a checked state to the form of `state`: it may have version 2, or be from JSON."""
    optional = ("drawn", "drawn_seed", "sampler_state", "upcoming")
    complete = {**dict.fromkeys(optional), "early": [], **state}
    if "undrawn_seeds" not in state:
        base_seed = state.get("base_seed")  # of persistent workers, in version 2
        complete["undrawn_seeds"] = int(base_seed not in (None, complete["drawn_seed"]))
    start = {
        **dict.fromkeys(("epoch", "random", "first", "seeded_states", "sampler")),
        **state["start"],
    }
    complete["start"] = {**start, "sampler": pack(unpack(start["sampler"]))}
    complete["sampler_state"] = pack(unpack(complete["sampler_state"]))
    return complete
