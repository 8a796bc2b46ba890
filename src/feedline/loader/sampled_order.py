"""Order drawn from torch's samplers, epoch by epoch, and a loader's position in it.

Guarantees: the samplers and the random state are drawn from as torch's DataLoader does, in the same
order: first the pass over the sampler is created, then the workers' seed is drawn, then the first
batch. The same seeds give the same batches. A state contains what determines the rest of an epoch:
the random states at its beginning, or the state of a sampler that has one, and a digest of the
delivered batches. If a sampler gives other batches on resume, an error is raised and the sampler is
left unchanged.

Relies on: a sampler is asked for one epoch at a time. The order of later epochs is up to the
samplers, as with torch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from feedline.engine.messages import error_message
from feedline.errors import StateError
from feedline.loader.sampled_epoch import (
    Draw,
    Draws,
    EpochProgress,
    RandomStates,
    SampledEpoch,
    check_record,
)
from feedline.loader.samplers import (
    ask,
    describe,
    draws_nothing,
    epoch_mark,
    set_epoch,
    stateful_part,
)
from feedline.order.batch_spec import BatchSpec
from feedline.order.position import (
    STATE_VERSION,
    Position,
    check_same_run,
    check_state,
    position_in,
)
from feedline.order.schedule import Phase, Schedule, is_count
from feedline.order.seeds import EpochSeeds, mix

__all__ = [
    "EpochSource",
    "SampledPosition",
]


@dataclass
class EpochSource:
    """Source of epochs.

    Args:
        sampler: yields the keys of each batch; a new pass for each epoch.
        generator: generator for the workers' seeds; None for torch's global random state.
        seeds: seeds of the epochs, or how to draw them.
    """

    sampler: Iterable[Any]
    generator: torch.Generator | None
    seeds: EpochSeeds

    def start(self, random: RandomStates | None = None) -> dict[str, Any]:
        """State that an epoch opened now depends on, JSON-able.

        Args:
            random: random states; None if nothing is drawn from them.
        """
        kept = stateful_part(self.sampler)
        start: dict[str, Any] = {"epoch": epoch_mark(self.sampler)}
        if random is not None:
            start["random"] = random.as_json()
        if kept is not None:
            start["sampler"] = copy.deepcopy(kept.state_dict())
        return start

    def random_states(self) -> RandomStates:
        """Current random states."""
        return RandomStates.capture(self.sampler, self.generator)

    def open(self, number: int, then: RandomStates | None = None) -> SampledEpoch:
        """Begin the pass of an epoch with the sampler's current state.

        Args:
            number: number of the epoch.
            then: random states to draw from; None for the current ones.
        """
        epoch = self._open(self.seeds.seed_of(number), then, None)
        self.seeds.record(number, epoch.seed)
        return epoch

    def _open(
        self, seed: int | None, then: RandomStates | None, first: RandomStates | None
    ) -> SampledEpoch:
        """Begin a pass.

        Args:
            seed: seed of the epoch; None draws it, as torch does.
            then: random states to draw from; None for the current ones.
            first: states to draw from after the seed is drawn; None to continue with `then`.
        """
        random = self.random_states() if then is None else then
        # A seed that was drawn is part of a state itself.
        start = self.start(None if draws_nothing(self.sampler) else random)
        drawing = self._pass(seed)
        if then is not None:
            drawing = then.replay(drawing, first)
        elif "random" in start:
            drawing = self._record_first_states(drawing, start)
        found = ask(drawing)
        return SampledEpoch(Draws(drawing, self.sampler), found, random, start)

    def _record_first_states(self, drawing: Iterator[Any], start: dict[str, Any]) -> Iterator[Any]:
        """Pass that records the random states of its first keys, if others drew from them before.

        Without workers these are drawn by the first `next`, which may be long after `iter`.
        """
        seed = next(drawing)
        after = self.random_states()
        yield seed
        if (first := self.random_states()) != after:
            start["first"] = first.as_json()
        yield from drawing

    def _pass(self, seed: int | None) -> Iterator[Any]:
        """Yield the epoch's seed, then the keys of each batch."""
        keys = iter(self.sampler)  # which may draw already
        if seed is None:
            # By name: torch.set_default_device is for tensors of the user's.
            device = "cpu" if self.generator is None else self.generator.device
            drawn = torch.empty((), dtype=torch.int64, device=device)
            seed = int(drawn.random_(generator=self.generator).item())
        yield seed
        # `yield from` would close a generator that the next epoch continues.
        for batch in keys:  # noqa: UP028
            yield batch

    def reopen(
        self,
        state: Mapping[str, Any],
        position: Position,
        *,
        comparable: bool,
        begin: bool = False,
    ) -> SampledEpoch:
        """Reopen the epoch of a state at its step, from the sampler's state or by drawing again.

        Args:
            state: from `feedline.loader.sampled_order`.
            position: position in the state.
            comparable: the state is of the same share of the epoch, so digests must be equal.
            begin: an iteration begins with it: the sampler has its final settings, and if the
                random states are still those of the state, they are drawn from directly, not from a
                copy.

        Raises:
            StateError: the sampler gives other batches, or the state is damaged.
        """
        step, seed = position.step, self.seeds.seed_in_state(state, position.epoch)
        with self._unchanged_by_errors():
            mark = state["start"].get("epoch")
            if mark is not None and not begin:
                if not is_count(mark):
                    raise StateError(
                        f"cannot resume: damaged position: the sampler's epoch is {mark!r}"
                    )
                set_epoch(self.sampler, mark)
            keeps_state = stateful_part(self.sampler) is not None
            if step and keeps_state and state.get("sampler_state") is not None:
                epoch = self._reopen(state, state["sampler_state"], seed, begin)
                if _continues_as_saved(epoch, state) and is_count(state.get("drawn")):
                    epoch.first = step
                    kept = epoch.draws.sampler_state
                    early = frozenset(state.get("early", ()))
                    epoch.progress = EpochProgress(step, int(state["drawn"]), early, kept)
                    return epoch
            epoch = self._reopen(state, state["start"].get("sampler"), seed, begin)
            if begin:
                self.seeds.record(position.epoch, epoch.seed)
            epoch.skip_to(step)
            if epoch.step < step:
                raise StateError(
                    f"cannot resume: the sampler gave only {epoch.step} batches, but {step} had "
                    "been delivered. Use the dataset and sampler of the saved run"
                )
            same = epoch.progress.digest == state.get("drawn")
            if comparable and not (same and _continues_as_saved(epoch, state)):
                raise StateError(
                    f"cannot resume: {describe(self.sampler)['type']} gives other samples than "
                    "when the state was saved. A sampler must be deterministic, draw from torch's "
                    "random state or from a torch.Generator in its attribute `generator`, or have "
                    "state_dict() and load_state_dict(). Check that its seed is the same"
                )
            epoch.progress = epoch.progress._replace(early=frozenset(state.get("early", ())))
            return epoch

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Restore the sampler and the generators after an error, and raise it as a StateError."""
        random, before = self.random_states(), self.start()
        try:
            yield
        except Exception as error:
            random.set_generators()
            if before["epoch"] is not None:
                set_epoch(self.sampler, before["epoch"])
            self._load(before.get("sampler"))
            if isinstance(error, StateError):
                raise
            raise StateError(  # whatever a user's sampler makes of a damaged state
                f"cannot resume: {describe(self.sampler)['type']} raised {type(error).__name__}: "
                f"{error_message(error)}. The state may be damaged"
            ) from error

    def _load(self, sampler_state: Any) -> None:
        kept = stateful_part(self.sampler)
        if kept is not None and sampler_state is not None:
            kept.load_state_dict(sampler_state)

    def _reopen(
        self, state: Mapping[str, Any], sampler_state: Any, seed: int | None, begin: bool
    ) -> SampledEpoch:
        """Reopen the epoch of a state, with the random states of then.

        A sampler with a state of its own continues from `sampler_state`, its generator included.
        """
        then, first = (
            None if saved is None else RandomStates.from_json(saved, self.sampler, self.generator)
            for saved in map(state["start"].get, ("random", "first"))
        )
        if then is not None:
            then.set_generators()
        elif seed is None:
            seed = state["drawn_seed"]
        self._load(sampler_state)
        same = (
            then is not None
            and first is None
            and then.global_state == self.random_states().global_state
        )
        if begin and same:
            then = None  # else the next epoch would be this one again
        epoch = self._open(seed, then, first)
        epoch.start = dict(state["start"])
        return epoch


def _continues_as_saved(epoch: SampledEpoch, state: Mapping[str, Any]) -> bool:
    """Return True if a reopened epoch continues with the batch that the state names, if any."""
    return "upcoming" not in state or epoch.upcoming() == state["upcoming"]


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
        self._source = EpochSource(sampler, generator, EpochSeeds(seed, once=persistent))
        self._schedule = schedule
        self._rank, self._world_size = share
        self.current = Position()
        self._is_iterating = False  # an iteration has begun and not ended
        self._has_delivered = False  # since `current` was set other than by a delivery
        self._open: SampledEpoch | None = None
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
        self._enter(self._source.open(self.current.epoch, then))

    def _open_restored(self) -> None:
        """Open the restored epoch; at its beginning with the sampler's current settings."""
        epoch = self._open
        if self._restored is not None and (epoch is None or not self._restored["step"]):
            at = self.current.at_step(0)
            epoch = self._source.reopen(self._restored, at, comparable=False, begin=True)
        assert epoch is not None, "a state in mid-epoch is opened when it is loaded"
        self._enter(epoch)

    def _enter(self, epoch: SampledEpoch) -> None:
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
        if epoch is None or is_under_way or epoch.draws.mark == epoch_mark(self._source.sampler):
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
        state = {**epoch.record(), "kept_seed": self._source.seeds.base}
        at_beginning = not self._has_delivered and self.restored_step == 0
        self._open = self._source.reopen(state, self.current, comparable=True, begin=at_beginning)

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
        set_epoch(self._source.sampler, epoch)
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
        return len(self._source.sampler)  # type: ignore[arg-type]

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

    def _batch(self, epoch: SampledEpoch, step: int, draw: Draw) -> BatchSpec:
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
        self._source.generator = generator

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
            "kept_seed": self._source.seeds.base,
        }
        if self.steps_to_skip > self.current.step:
            state["steps_to_skip"] = self.steps_to_skip
        epoch, restored = self._open, self._restored
        mark = epoch_mark(self._source.sampler)
        still = self.current.step == self.restored_step
        if restored and still and (epoch is None or restored["start"].get("epoch") == mark):
            return state | {name: restored[name] for name in _KEPT_ENTRIES if name in restored}
        if epoch is None:
            return state | {"start": self._source.start(self._source.random_states())}
        return state | epoch.record()

    def _identity(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **identity,
            "seed": self._source.seeds.seed,
            "sampler": describe(self._source.sampler),
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
        epoch = self._source.reopen(state, position, comparable=mine)
        self._source.seeds.load_state(state, position.epoch)
        self._open, self._restored = epoch if opened else None, state
        self._has_delivered, self.steps_to_skip = False, state.get("steps_to_skip", 0)
        self.current = position
        if self._is_iterating:
            self._open_restored()
