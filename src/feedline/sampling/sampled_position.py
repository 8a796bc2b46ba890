"""Position of a loader whose epochs are drawn from torch's samplers.

Guarantees: the samplers and the random state are drawn from as torch's DataLoader does, in the
same order: the same seeds give the same batches. A state contains what determines the rest of an
epoch: the random states at its beginning, or the state of a sampler that has one, and a digest of
the delivered batches. If a sampler gives other batches on resume, an error is raised.

Relies on: a sampler is asked for one epoch at a time. The order of later epochs is up to the
samplers, as with torch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from feedline.errors import StateError
from feedline.order.batch_spec import BatchSpec
from feedline.order.position import (
    STATE_VERSION,
    Position,
    check_same_run,
    check_state,
    position_in,
)
from feedline.order.schedule import Phase, Schedule
from feedline.order.seeds import EpochSeeds, mix
from feedline.sampling.draws import Draw
from feedline.sampling.epoch import Epoch, check_record
from feedline.sampling.opening import Sampling
from feedline.sampling.random_states import RandomStates
from feedline.sampling.samplers import describe, epoch_mark, set_epoch

__all__ = ["SampledPosition"]

_KEPT_ENTRIES = ["drawn", "early", "drawn_seed", "kept_seed", "start", "sampler_state", "upcoming"]
"""Entries of a loaded state that are kept until a batch is delivered."""


class SampledPosition:
    """Position of a loader that draws from samplers.

    Args:
        sampler: yields the keys of each batch; a new pass for each epoch.
        generator: generator for the workers' seeds; None for torch's global random state.
        schedule: phases.
        share: rank of this process among those that share an epoch, and their number.
        seed: seed of random transforms; None draws it as torch does.
        persistent: draw one seed for all epochs, like torch with persistent workers.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        generator: torch.Generator | None,
        schedule: Schedule,
        *,
        share: tuple[int, int],
        seed: int | None = None,
        persistent: bool = False,
    ) -> None:
        self._sampling = Sampling(sampler, generator, EpochSeeds(seed, once=persistent))
        self._schedule = schedule
        self._rank, self._world_size = share
        self.current = Position()
        self._is_iterating = False  # an iteration has begun and not ended
        self._has_delivered = False  # since `current` was set other than by a delivery
        self._open: Epoch | None = None
        self._restored: Mapping[str, Any] | None = None  # a state that waits for an iteration
        self.steps_to_skip = 0
        """Number of batches at the beginning of the next epoch that `set_step` skips."""

    # Position

    def begin(self) -> bool:
        """Begin an iteration: a new epoch, or the restored one."""
        if self._has_delivered:
            self._move_to_epoch(self.current.epoch + 1)
        self._is_iterating = True
        if self._restored is None:
            self._open_epoch()
        else:
            self._open_restored()
        return True

    def _open_epoch(self, then: RandomStates | None = None) -> None:
        """Open the epoch at its beginning; `then` are the random states to draw from."""
        self._enter(self._sampling.open(self.current.epoch, then))

    def _open_restored(self) -> None:
        """Open the restored epoch; at its beginning with the sampler's current settings."""
        epoch = self._open
        if self._restored is not None and (epoch is None or not self._restored["step"]):
            at = self.current.at_step(0)
            epoch = self._sampling.reopen(self._restored, at, comparable=False, begin=True)
        assert epoch is not None, "a state in mid-epoch is opened when it is loaded"
        self._enter(epoch)

    def _enter(self, epoch: Epoch) -> None:
        """Set the position to that of an epoch, or after the batches to skip in it."""
        epoch.skip_to(self.steps_to_skip)
        self._open, self.current = epoch, self.current.at_step(epoch.step)

    @property
    def restored_step(self) -> int:
        """Step of a restored state that waits for an iteration."""
        return 0 if self._restored is None else int(self._restored["step"])

    def order_changed(self) -> bool:
        """Return True if the sampler's epoch was changed before the first batch was delivered."""
        epoch = self._open
        is_under_way = self._has_delivered or self.restored_step > 0
        if epoch is None or is_under_way or epoch.draws.mark == epoch_mark(self._sampling.sampler):
            return False
        epoch.random.set_generators()
        self._open_epoch(epoch.random)
        return True

    def is_at_end(self) -> bool:
        """True if the epoch has no batches left; asks the sampler if that is unknown."""
        if self._open is None:
            return False
        self._restart_broken_pass()
        return self._open.at_end()

    def _restart_broken_pass(self) -> None:
        """Restart a pass over the sampler that an interrupt stopped.

        Raises:
            StateError: the sampler does not give again what it gave.
        """
        if (epoch := self._open) is None or not epoch.draws.broken:
            return
        state = {**epoch.record(), "kept_seed": self._sampling.seeds.base}
        at_beginning = not self._has_delivered and self.restored_step == 0
        self._open = self._sampling.reopen(state, self.current, comparable=True, begin=at_beginning)

    def record_delivery(self, batch: BatchSpec) -> None:
        """Record the delivery of a batch, or of the exception raised instead.

        Ctrl-C leaves it either recorded or not.
        """
        epoch = self._open
        assert epoch is not None, "a batch was delivered before the epoch was opened"
        progress = epoch.after(batch.step)
        after = self.current.at_step(progress.step)
        # No call in between: Python handles Ctrl-C in calls.
        epoch.progress, self.current = progress, after
        self._has_delivered, self._restored, self.steps_to_skip = True, None, 0

    def finish(self) -> None:
        """End the iteration after the epoch's last batch."""
        self._move_to_epoch(self.current.epoch + 1)
        self._is_iterating = False

    def _move_to_epoch(self, epoch: int) -> None:
        """Set the position to the beginning of an epoch that is not opened yet."""
        # No call in between: Python handles Ctrl-C in calls.
        first = replace(self.current, epoch=epoch, step=0)
        self._has_delivered, self.steps_to_skip, self.current = False, 0, first
        self._open = self._restored = None

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration as `epoch`.

        A position restored within it stays, and so does a step set with `set_step`.
        """
        set_epoch(self._sampling.sampler, epoch)
        if not self._has_delivered and epoch == self.current.epoch:
            return False
        self._is_iterating = self._is_iterating and not self._has_delivered
        step = 0 if self._has_delivered else self.steps_to_skip
        self._move_to_epoch(epoch)
        self.steps_to_skip = step
        if self._is_iterating:  # the current iteration, without a batch yet, is of this epoch
            self._open_epoch()
        return True

    def set_step(self, step: int) -> bool:
        """Begin the next iteration at a step of its epoch, not before the restored one.

        A state from the end of an epoch counts as one from the beginning of the next. Nothing is
        drawn before the iteration begins.
        """
        back = step < self.restored_step == self.current.step
        if self._has_delivered or (back and self.is_at_end()):
            self._is_iterating = self._is_iterating and not self._has_delivered
            self._move_to_epoch(self.current.epoch + 1)
        first = self.current if self._is_iterating else self.current.at_step(self.restored_step)
        self.steps_to_skip = first.skip_to(step).step
        if self._is_iterating and self._open is not None:
            self._restart_broken_pass()
            self._enter(self._open)
        return True

    def set_image_size(self, image_size: int | None) -> bool:
        """Set the image size of all following batches. None returns to the schedule."""
        changed = image_size != self.current.image_size
        self.current = replace(self.current, image_size=image_size)
        return changed

    def steps(self, epoch: int) -> int:
        """Number of batches of an epoch.

        Raises:
            TypeError: the sampler has no length.
        """
        return len(self._sampling.sampler)  # type: ignore[arg-type]

    def upcoming(self) -> Iterator[BatchSpec]:
        """Remaining batches of this epoch, in order."""
        self._restart_broken_pass()
        epoch = self._open
        if epoch is not None:
            for step, draw in epoch.ahead():
                yield self._batch(epoch, step, draw)
                if epoch is not self._open:
                    return

    @property
    def phase(self) -> Phase:
        """Phase at the position."""
        return self._schedule.phase_at(self.current.epoch)

    def _batch(self, epoch: Epoch, step: int, draw: Draw) -> BatchSpec:
        phase = self.phase
        return BatchSpec(
            epoch=self.current.epoch,
            step=step,
            phase=phase,
            image_size=self.current.image_size or phase.image_size,
            samples=draw.samples,
            padding=0,
            seed=mix(epoch.seed, step),
            rank=self._rank,
            is_sampled=True,
            keys=draw.keys,
            stride=1,
        )

    @property
    def seed(self) -> int:
        """Seed of the open epoch."""
        assert self._open is not None, "an epoch has no seed before its first iteration"
        return self._open.seed

    def set_generator(self, generator: torch.Generator | None) -> None:
        """Draw the seeds of the next epochs from another generator."""
        self._sampling.generator = generator

    def fork(self) -> SampledPosition | None:
        """Create a position for an iteration that continues on its own; None if none is active.

        It takes over the draws of the open epoch: this position must begin another.
        """
        return None if self._open is None else copy.copy(self)

    # State

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Position as a state, JSON-able if the sampler's own state is.

        Between two epochs it contains the random states the next one will be drawn from, and draws
        nothing.
        """
        with suppress(StateError):  # the next batch raises it
            self._restart_broken_pass()
        state = {
            "version": STATE_VERSION,
            "epoch": self.current.epoch,
            "step": self.current.step,
            "early": [],
            "image_size": self.current.image_size,
            **self._identity(identity),
            "rank": self._rank,
            "world": self._world_size,
            "drawn": 0,
            "drawn_seed": None,
            "kept_seed": self._sampling.seeds.base,
        }
        if self.steps_to_skip > self.current.step:
            state["steps_to_skip"] = self.steps_to_skip
        epoch, restored = self._open, self._restored
        mark = epoch_mark(self._sampling.sampler)
        still = self.current.step == self.restored_step
        if restored and still and (epoch is None or restored["start"].get("epoch") == mark):
            return state | {name: restored[name] for name in _KEPT_ENTRIES if name in restored}
        if epoch is None:
            return state | {"start": self._sampling.start(self._sampling.now())}
        return state | epoch.record()

    def _identity(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **identity,
            "seed": self._sampling.seeds.seed,
            "sampler": describe(self._sampling.sampler),
        }

    def load_state(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        """Continue with exactly the batches not yet delivered in a state.

        Raises:
            StateError: the state belongs to another dataset, sampler or batch size, or the sampler
                gives other batches.
        """
        check_state(state)
        if "start" not in state:
            raise StateError(
                "cannot resume: the state is of a loader with its own order (seed= or schedule=), "
                "and this loader draws its order from samplers; build it with the same arguments"
            )
        check_same_run(state, self._identity(identity))
        position = position_in(state)
        opened = check_record(state, position)
        mine = opened and (state.get("rank"), state.get("world")) == (self._rank, self._world_size)
        epoch = self._sampling.reopen(state, position, comparable=mine)
        self._sampling.seeds.load_state(state, position.epoch)
        self._open, self._restored = epoch if opened else None, state
        self._has_delivered, self.steps_to_skip = False, state.get("steps_to_skip", 0)
        self.current = position
        if self._is_iterating:
            self._open_restored()
