"""Epochs drawn from torch's samplers: which batches come, and where a loader stands.

Guarantees: the samplers and the random state are drawn from as torch's DataLoader draws from them,
in the same order: the same seeds give the same batches. A state holds what decides the rest of an
epoch: where the random states stood at its beginning, or the state of a sampler that keeps one,
and a digest of what was handed out. A sampler that does not give the same again is refused.

Relies on: a sampler being asked for one epoch at a time. The order of the epochs after that is the
samplers' own affair, as it is torch's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from feedline.errors import StateError
from feedline.plan.batches import Batch
from feedline.plan.schedule import Phase, Schedule
from feedline.plan.seeds import mix
from feedline.plan.state import (
    STATE_VERSION,
    Position,
    check_same_run,
    check_state,
    position_in,
)
from feedline.sampling.draws import Draw
from feedline.sampling.epoch import Epoch, check_record
from feedline.sampling.epoch_seeds import EpochSeeds
from feedline.sampling.opening import Sampling
from feedline.sampling.random_states import RandomStates
from feedline.sampling.samplers import describe, epoch_mark, set_epoch

__all__ = ["SampledCursor"]

_AS_THEY_CAME = ["drawn", "early", "drawn_seed", "kept_seed", "start", "sampler_state", "upcoming"]
"""What a state that was loaded keeps until a batch was handed out."""


class SampledCursor:
    """The position of a loader that draws from samplers.

    Args:
        sampler: gives the keys of one batch after another; a new pass for each epoch.
        generator: where the seeds of workers are drawn from; None for torch's global random state.
        schedule: the phases.
        share: this process among those that share an epoch, and their number.
        seed: what random transforms follow from; None draws it as torch does.
        persistent: torch's workers would live on, and draw one seed for all epochs.
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
        self._rank, self._world = share
        self.position = Position()
        self._under_way = False  # an iteration has begun and not ended
        self._begun = False  # a batch was handed out since the position was come to
        self._open: Epoch | None = None
        self._restored: Mapping[str, Any] | None = None  # a state that waits for an iteration
        self.to_leave_out = 0
        """How many of the next epoch's first batches `set_step` leaves out."""

    # Position

    def begin(self) -> bool:
        """An iteration begins: a new epoch, unless one was restored."""
        if self._begun:
            self._go_to(self.position.epoch + 1)
        self._under_way = True
        if self._restored is None:
            self._open_anew()
        else:
            self._open_restored()
        return True

    def _open_anew(self, then: RandomStates | None = None) -> None:
        """Open the epoch at its beginning; `then` are the random states to draw from."""
        self._stand_in(self._sampling.open(self.position.epoch, then))

    def _open_restored(self) -> None:
        """Open what was restored; at its beginning with the sampler as it is set by now."""
        epoch = self._open
        if self._restored is not None and (epoch is None or not self._restored["step"]):
            at = self.position.at(0)
            epoch = self._sampling.reopen(self._restored, at, comparable=False, begin=True)
        assert epoch is not None, "a state in mid-epoch is opened when it is loaded"
        self._stand_in(epoch)

    def _stand_in(self, epoch: Epoch) -> None:
        """Stand where an epoch does, or behind what is to be left out of it."""
        epoch.leave_out(self.to_leave_out)
        self._open, self.position = epoch, self.position.at(epoch.step)

    @property
    def restored_step(self) -> int:
        """Where a state that waits for an iteration brought it."""
        return 0 if self._restored is None else int(self._restored["step"])

    def order_changed(self) -> bool:
        """Whether the sampler was set to another epoch before the first batch was handed out."""
        epoch = self._open
        begun = self._begun or self.restored_step > 0
        if epoch is None or begun or epoch.draws.mark == epoch_mark(self._sampling.sampler):
            return False
        epoch.random.set_generators()
        self._open_anew(epoch.random)
        return True

    def at_end(self) -> bool:
        """True if the epoch has no batch left; asks the sampler if that is not known."""
        if self._open is None:
            return False
        self._mend()
        return self._open.at_end()

    def _mend(self) -> None:
        """Begin a pass over the sampler again that an interrupt broke off.

        Raises:
            StateError: the sampler does not give again what it gave.
        """
        if (epoch := self._open) is None or not epoch.draws.broken:
            return
        state = {**epoch.record(), "kept_seed": self._sampling.seeds.kept}
        at_beginning = not self._begun and self.restored_step == 0
        self._open = self._sampling.reopen(
            state, self.position, comparable=True, begin=at_beginning
        )

    def delivered(self, batch: Batch) -> None:
        """A batch was handed out, or what was raised in its place.

        After Ctrl-C in here, it was or was not, and nothing between.
        """
        epoch = self._open
        assert epoch is not None, "a batch of an epoch that was never opened"
        standing = epoch.after(batch.step)
        behind = self.position.at(standing.step)
        # No call between: an interrupt is heard in calls.
        epoch.standing, self.position = standing, behind
        self._begun, self._restored, self.to_leave_out = True, None, 0

    def finish(self) -> None:
        """The epoch's last batch was handed out and the iteration ended."""
        self._go_to(self.position.epoch + 1)
        self._under_way = False

    def _go_to(self, epoch: int) -> None:
        """Stand at the beginning of an epoch that is not opened yet."""
        # All at once, as far as an interrupt can tell: it is heard in calls.
        there = replace(self.position, epoch=epoch, step=0)
        self._begun, self.to_leave_out, self.position = False, 0, there
        self._open = self._restored = None

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration as `epoch`.

        A restored position within it stays, and so does a step that was set.
        """
        set_epoch(self._sampling.sampler, epoch)
        if not self._begun and epoch == self.position.epoch:
            return False
        self._under_way = self._under_way and not self._begun
        step = 0 if self._begun else self.to_leave_out
        self._go_to(epoch)
        self.to_leave_out = step
        if self._under_way:  # an iteration has begun and given nothing: it is this epoch's
            self._open_anew()
        return True

    def set_step(self, step: int) -> bool:
        """Begin the next iteration at a step of its epoch, at or behind the one restored.

        A state from the end of an epoch counts as one from the beginning of the next. Nothing is
        drawn before the iteration begins.
        """
        back = step < self.restored_step == self.position.step
        if self._begun or (back and self.at_end()):
            self._under_way = self._under_way and not self._begun
            self._go_to(self.position.epoch + 1)
        standing = self.position if self._under_way else self.position.at(self.restored_step)
        self.to_leave_out = standing.later(step).step
        if self._under_way and self._open is not None:
            self._mend()
            self._stand_in(self._open)
        return True

    def set_image_size(self, size: int | None) -> bool:
        """Make all batches from here on of one size; None follows the schedule again."""
        changed = size != self.position.image_size
        self.position = replace(self.position, image_size=size)
        return changed

    def steps(self, epoch: int) -> int:
        """Batches of an epoch.

        Raises:
            TypeError: the sampler does not tell.
        """
        return len(self._sampling.sampler)  # type: ignore[arg-type]

    def ahead(self) -> Iterator[Batch]:
        """The batches of this epoch from the position on, in order."""
        self._mend()
        epoch = self._open
        if epoch is not None:
            for step, draw in epoch.ahead():
                yield self._batch(epoch, step, draw)
                if epoch is not self._open:
                    return

    @property
    def phase(self) -> Phase:
        """The phase of the position."""
        return self._schedule.phase_at(self.position.epoch)

    def _batch(self, epoch: Epoch, step: int, draw: Draw) -> Batch:
        phase = self.phase
        return Batch(
            epoch=self.position.epoch,
            step=step,
            phase=phase,
            image_size=self.position.image_size or phase.size,
            samples=draw.samples,
            padding=0,
            seed=mix(epoch.seed, step),
            rank=self._rank,
            drawn=True,
            keys=draw.keys,
            stride=1,
        )

    @property
    def seed(self) -> int:
        """What the randomness of the epoch that is open follows from."""
        assert self._open is not None, "an epoch has a seed once an iteration has begun"
        return self._open.seed

    def set_generator(self, generator: torch.Generator | None) -> None:
        """Draw the seeds of the next epochs from another generator."""
        self._sampling.generator = generator

    def fork(self) -> SampledCursor | None:
        """A cursor for an iteration that goes on apart from this one; None if none is under way.

        It takes over the draws of the epoch that is open: this cursor must begin another.
        """
        return None if self._open is None else copy.copy(self)

    # State

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Where the loader stands: JSON-able where the sampler's own state is.

        Between two epochs it says from which random states the next will be drawn, and draws
        nothing.
        """
        with suppress(StateError):  # the next batch raises it
            self._mend()
        state = {
            "version": STATE_VERSION,
            "epoch": self.position.epoch,
            "step": self.position.step,
            "early": [],
            "image_size": self.position.image_size,
            **self._mine(identity),
            "rank": self._rank,
            "world": self._world,
            "drawn": 0,
            "drawn_seed": None,
            "kept_seed": self._sampling.seeds.kept,
        }
        if self.to_leave_out > self.position.step:
            state["to_leave_out"] = self.to_leave_out
        epoch, restored = self._open, self._restored
        mark = epoch_mark(self._sampling.sampler)
        still = self.position.step == self.restored_step
        if restored and still and (epoch is None or restored["start"].get("epoch") == mark):
            return state | {name: restored[name] for name in _AS_THEY_CAME if name in restored}
        if epoch is None:
            return state | {"start": self._sampling.start(self._sampling.now())}
        return state | epoch.record()

    def _mine(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **identity,
            "seed": self._sampling.seeds.given,
            "sampler": describe(self._sampling.sampler),
        }

    def load(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        """Go on with exactly the batches that the state's loader had not handed out.

        Raises:
            StateError: the state is of another dataset, sampler or batch size, or the sampler
                does not give again what it gave.
        """
        check_state(state)
        if "start" not in state:
            raise StateError(
                "cannot resume: the state is of a loader with a seed or a schedule of its own "
                "(seed=...), and this one draws from samplers; build it as it was built"
            )
        check_same_run(state, self._mine(identity))
        position = position_in(state)
        opened = check_record(state, position)
        mine = opened and (state.get("rank"), state.get("world")) == (self._rank, self._world)
        epoch = self._sampling.reopen(state, position, comparable=mine)
        self._sampling.seeds.go_on(state, position.epoch)
        self._open, self._restored = epoch if opened else None, state
        self._begun, self.to_leave_out = False, state.get("to_leave_out", 0)
        self.position = position
        if self._under_way:  # and goes on from here
            self._open_restored()
