"""Epochs drawn from torch's samplers: which batches come, and where a loader stands.

Guarantees: the samplers and the random state are drawn from as torch's DataLoader draws from them,
in the same order: the same seeds give the same batches. A state holds what decides the rest of an
epoch: where the random states stood at its beginning, or the state of a sampler that keeps one,
and a digest of what was handed out. A sampler that does not give the same again is refused.

Relies on: a sampler being asked for one epoch at a time. The order of the epochs after that is the
samplers' own affair, as it is torch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feedline.dataset.draws import Draw, Draws
from feedline.dataset.randomness import Randomness
from feedline.dataset.samplers import describe, epoch_mark, stateful_part
from feedline.engine.messages import said
from feedline.errors import StateError
from feedline.plan.batches import Batch
from feedline.plan.schedule import Phase, Schedule
from feedline.plan.seeds import mix
from feedline.plan.state import (
    STATE_VERSION,
    Position,
    check_same_run,
    check_state,
    is_count,
    position_in,
)

__all__ = ["SampledEpochs"]

_UNSIZED = Phase(size=1, epochs=1)


@dataclass
class _Epoch:
    """An epoch that was opened: its draws, and what they follow from."""

    draws: Draws
    seed: int
    mark: int | None
    random: Randomness | None  # as it was before; None where drawing changed no random state
    began: dict[str, Any] | None  # the sampler's own state before the first draw
    restored: Mapping[str, Any] | None = None  # where it comes from a state: how it began there

    def start(self) -> dict[str, Any]:
        """What is needed to open it again, JSON-able."""
        if self.restored is not None:
            return dict(self.restored)
        start: dict[str, Any] = {"epoch": self.mark}
        if self.random is not None:
            start["random"] = self.random.as_json()
        if self.began is not None:
            start["sampler"] = self.began
        return start


class SampledEpochs:
    """The way of a loader that draws from samplers.

    Args:
        sampler: gives the keys of one batch after another; a new pass for each epoch.
        generator: where a worker's seeds come from; None for torch's global random state.
        identity: gives what must be the same for a state to fit, JSON-able, by its name.
        schedule: phases of image size; None for no size at all.
        share: this process among those that share an epoch, and their number.
        seed: what random transforms follow from; None draws it for each epoch, as torch does.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        generator: torch.Generator | None,
        identity: Callable[[], dict[str, Any]],
        schedule: Schedule | None,
        *,
        share: tuple[int, int],
        seed: int | None = None,
    ) -> None:
        self._seed = seed
        self._sampler = sampler
        self._generator = generator
        self._identity = identity
        self._schedule = schedule
        self._rank, self._world = share
        self.position = Position()
        self._begun = False  # a batch was handed out since the position was come to
        self._open: _Epoch | None = None
        self._ready = False  # what is open waits for an iteration to begin
        self._digest = 0
        self._early: set[int] = set()  # steps handed out before their turn: in_order=False

    # The way

    def begin(self) -> bool:
        """An iteration begins: a new epoch, unless one was prepared or restored."""
        if self._begun:
            self._next_epoch()
        if self._open is None or not self._ready:
            self._open = self._opened()
        elif self.position.step == 0 and (
            self._open.mark != epoch_mark(self._sampler)
            or not (self._open.random or stateful_part(self._sampler))
        ):
            # It was opened for a state. What took no random numbers may be asked again, and must
            # be where the sampler was since set to another epoch. One that keeps a state has
            # gone on since.
            now = Randomness.now(self._sampler, self._generator)
            self._open = self._start(self._open.seed, now)
        self._ready = False
        return True

    def moved(self) -> bool:
        """Whether the sampler was set to another epoch before the first batch was handed out."""
        epoch = self._open
        if epoch is None or self._begun or self.position.step:
            return False
        if epoch.mark == epoch_mark(self._sampler):
            return False
        self._open = self._start(epoch.seed, Randomness.now(self._sampler, self._generator))
        return True

    def at_end(self) -> bool:
        """Whether the epoch has no batch left; asks the sampler where nobody knows."""
        next_step = self.position.step
        while next_step in self._early:
            next_step += 1
        epoch = self._open
        return epoch is not None and epoch.draws.at(next_step - self.position.step) is None

    def delivered(self, batch: Batch) -> None:
        """A batch was handed out, or what was raised in its place."""
        assert self._open is not None, "a batch of an epoch that was never opened"
        self._begun = True
        self._early.add(batch.step)
        step = self.position.step
        while step in self._early:
            self._early.remove(step)
            self._digest = self._open.draws.deliver(self._digest)
            step += 1
        self.position = replace(self.position, step=step)

    def finish(self) -> None:
        """The epoch's last batch was handed out and the iteration ended."""
        self._next_epoch()

    def _next_epoch(self) -> None:
        self._begun = False
        self._open = None
        self._ready = False
        self._digest = 0
        self._early.clear()
        self.position = replace(self.position, epoch=self.position.epoch + 1, step=0)

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration as `epoch`; a restored position within it stays."""
        set_it = getattr(self._sampler_with_epochs(), "set_epoch", None)
        if set_it is not None:
            set_it(epoch)
        if not self._begun and epoch == self.position.epoch:
            return False
        waits = self._open is not None and not (self._begun or self._ready)
        self._next_epoch()
        self.position = replace(self.position, epoch=epoch)
        if waits:  # an iteration has begun and given nothing: it is this epoch's
            self._open = self._opened()
        return True

    def _sampler_with_epochs(self) -> object:
        inner: object = self._sampler
        while inner is not None and not hasattr(inner, "set_epoch"):
            inner = getattr(inner, "sampler", None)
        return inner

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
        return len(self._sampler)  # type: ignore[arg-type]

    def ahead(self) -> Iterator[Batch]:
        """The batches of this epoch from the position on, in order."""
        epoch = self._open
        step = self.position.step
        while epoch is not None and epoch is self._open:
            draw = epoch.draws.at(step - self.position.step)
            if draw is None:
                return
            if step not in self._early:
                yield self._batch(epoch, step, draw)
            step += 1

    @property
    def phase(self) -> Phase:
        """The phase of the position."""
        if self._schedule is None:
            return _UNSIZED
        return self._schedule.phase_at(self.position.epoch)

    def _batch(self, epoch: _Epoch, step: int, draw: Draw) -> Batch:
        phase = self.phase
        size = 0 if self._schedule is None else phase.size
        return Batch(
            epoch=self.position.epoch,
            step=step,
            phase=phase,
            image_size=self.position.image_size or size,
            samples=_numbers(draw.keys),
            padding=0,
            seed=mix(epoch.seed, step),
            keys=draw.keys,
        )

    # Opening an epoch

    def _opened(self) -> _Epoch:
        """Draw what torch's iterator draws when it is made: the workers' seed, then the order."""
        if self._seed is None:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=self._generator)
            seed = int(drawn.item())
        else:
            seed = mix(self._seed, self.position.epoch)
        return self._start(seed, Randomness.now(self._sampler, self._generator))

    def _start(self, seed: int, before: Randomness) -> _Epoch:
        draws = Draws(self._sampler, stateful_part(self._sampler))
        began = draws.sampler_state
        draws.peek()
        effects = before.differs(Randomness.now(self._sampler, self._generator))
        random = before if effects else None
        return _Epoch(draws, seed, epoch_mark(self._sampler), random, began)

    # State

    def state(self) -> dict[str, Any]:
        """Where the loader stands: JSON-able where the sampler's own state is.

        Between two epochs the next one is opened, as what it draws from a random state belongs to
        what comes.
        """
        if self._open is None:
            self._open, self._ready = self._opened(), True
        epoch = self._open
        upcoming = epoch.draws.peek()
        return {
            "version": STATE_VERSION,
            "epoch": self.position.epoch,
            "step": self.position.step,
            "early": sorted(self._early),
            "image_size": self.position.image_size,
            **self._mine(),
            "rank": self._rank,
            "world": self._world,
            "drawn_seed": epoch.seed,
            "start": epoch.start(),
            "sampler_state": epoch.draws.sampler_state,
            "drawn": self._digest,
            "upcoming": None if upcoming is None else upcoming.digest(0),
        }

    def _mine(self) -> dict[str, Any]:
        return {**self._identity(), "seed": self._seed, "sampler": describe(self._sampler)}

    def load(self, state: Mapping[str, Any]) -> None:
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
        check_same_run(state, self._mine())
        position = position_in(state)
        early = state.get("early", [])
        whole = isinstance(early, list) and all(is_count(each) for each in early)
        whole = whole and is_count(state.get("drawn_seed")) and isinstance(state["start"], Mapping)
        if not whole:
            raise StateError("cannot resume: the state is damaged: early, drawn_seed or start")
        try:
            self._open, self._digest = self._replayed(state, position.step)
        except StateError:
            raise
        except Exception as error:  # whatever a user's sampler makes of a damaged state
            raise StateError(
                f"cannot resume: {describe(self._sampler)['type']} does not go on from the state: "
                f"{type(error).__name__}: {said(error)}. Is the state damaged?"
            ) from error
        self._early = set(early)
        self._ready = True
        self._begun = False
        self.position = position

    def _replayed(self, state: Mapping[str, Any], step: int) -> tuple[_Epoch, int]:
        """The epoch of a state, at its step; by the sampler's own state, or drawing again."""
        mark = state["start"].get("epoch")
        set_it = getattr(self._sampler_with_epochs(), "set_epoch", None)
        if mark is not None and set_it is not None:
            if not is_count(mark):
                raise StateError(f"cannot resume: damaged position, the sampler's epoch {mark!r}")
            set_it(mark)
        comparable = (state.get("rank"), state.get("world")) == (self._rank, self._world)
        if stateful_part(self._sampler) is not None and state.get("sampler_state") is not None:
            epoch = self._again(state, state["sampler_state"])
            if _fits(epoch, state) and is_count(state.get("drawn")):
                return epoch, int(state["drawn"])
        epoch = self._again(state, state["start"].get("sampler"))
        digest = 0
        for k in range(step):
            if epoch.draws.peek() is None:
                raise StateError(
                    f"cannot resume: the sampler gave {k} batches, of which {step} had been "
                    "handed out; has the dataset or the sampler changed?"
                )
            digest = epoch.draws.deliver(digest)
        if comparable and (digest != state.get("drawn") or not _fits(epoch, state)):
            raise StateError(
                f"cannot resume: {describe(self._sampler)['type']} gives other samples than when "
                "the state was saved. A sampler must be deterministic, draw from torch's random "
                "state or a torch.Generator in its attribute `generator`, or have state_dict() "
                "and load_state_dict(); was it given another seed?"
            )
        return epoch, digest

    def _again(self, state: Mapping[str, Any], sampler_state: Any) -> _Epoch:
        """Open the epoch of a state once more, with the random states of then.

        A sampler that keeps a state goes on from `sampler_state`, a generator of its own included.
        """
        random = state["start"].get("random")
        then = None
        if random is not None:
            then = Randomness.from_json(random, self._sampler, self._generator)
        kept = stateful_part(self._sampler)
        if kept is not None and sampler_state is not None:
            kept.load_state_dict(sampler_state)
        if then is None:
            epoch = self._start(
                int(state["drawn_seed"]), Randomness.now(self._sampler, self._generator)
            )
        else:
            draws = Draws(then.replay(self._sampler), kept)
            epoch = _Epoch(draws, int(state["drawn_seed"]), epoch_mark(self._sampler), then, None)
        epoch.restored = dict(state["start"])
        return epoch


def _fits(epoch: _Epoch, state: Mapping[str, Any]) -> bool:
    upcoming = epoch.draws.peek()
    return (None if upcoming is None else upcoming.digest(0)) == state.get("upcoming")


def _numbers(keys: Any) -> NDArray[np.int64]:
    """The sample numbers among a batch's keys; -1 for keys that are none."""
    listed = keys if isinstance(keys, (list, tuple)) else [keys]
    with contextlib.suppress(ValueError):  # keys that are themselves of several lengths
        found = np.array(listed)
        if found.ndim == 1 and found.dtype.kind in "iu":
            return found.astype(np.int64, copy=False)
    return np.full(len(listed), -1, np.int64)
