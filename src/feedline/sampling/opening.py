"""Opening of epochs from torch's samplers: a new pass, or the pass of a state.

Guarantees: the sampler and the random states are drawn from as torch's DataLoader does: first the
pass over the sampler is created, then the workers' seed is drawn, then the first batch. Reopening
gives the same batches, from the recorded random states or the sampler's own state; if a sampler
gives other batches, an error is raised and the sampler is left unchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from feedline.engine.messages import said
from feedline.errors import StateError
from feedline.order.position import Position
from feedline.order.schedule import is_count
from feedline.order.seeds import EpochSeeds
from feedline.sampling.draws import Draws, ask
from feedline.sampling.epoch import Epoch, EpochProgress
from feedline.sampling.random_states import RandomStates
from feedline.sampling.samplers import describe, draws_nothing, epoch_mark, set_epoch, stateful_part

__all__ = ["Sampling"]


@dataclass
class Sampling:
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

    def now(self) -> RandomStates:
        """Current random states."""
        return RandomStates.now(self.sampler, self.generator)

    def open(self, number: int, then: RandomStates | None = None) -> Epoch:
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
    ) -> Epoch:
        """Begin a pass.

        Args:
            seed: seed of the epoch; None draws it, as torch does.
            then: random states to draw from; None for the current ones.
            first: states to draw from after the seed is drawn; None to continue with `then`.
        """
        random = self.now() if then is None else then
        # A seed that was drawn is part of a state itself.
        start = self.start(None if draws_nothing(self.sampler) else random)
        drawing = self._pass(seed)
        if then is not None:
            drawing = then.replay(drawing, first)
        elif "random" in start:
            drawing = self._noted(drawing, start)
        found = ask(drawing)
        return Epoch(Draws(drawing, self.sampler), found, random, start)

    def _noted(self, drawing: Iterator[Any], start: dict[str, Any]) -> Iterator[Any]:
        """Pass that records the random states of its first keys, if others drew from them before.

        Without workers these are drawn by the first `next`, which may be long after `iter`.
        """
        seed = next(drawing)
        after = self.now()
        yield seed
        if (first := self.now()) != after:
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
    ) -> Epoch:
        """Reopen the epoch of a state at its step, from the sampler's state or by drawing again.

        Args:
            state: from `feedline.sampling.sampled_position`.
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
                epoch = self._again(state, state["sampler_state"], seed, begin)
                if _as_it_was(epoch, state) and is_count(state.get("drawn")):
                    epoch.first = step
                    kept = epoch.draws.sampler_state
                    early = frozenset(state.get("early", ()))
                    epoch.progress = EpochProgress(step, int(state["drawn"]), early, kept)
                    return epoch
            epoch = self._again(state, state["start"].get("sampler"), seed, begin)
            if begin:
                self.seeds.record(position.epoch, epoch.seed)
            epoch.skip_to(step)
            if epoch.step < step:
                raise StateError(
                    f"cannot resume: the sampler gave only {epoch.step} batches, but {step} had "
                    "been delivered. Use the dataset and sampler of the saved run"
                )
            same = epoch.progress.digest == state.get("drawn")
            if comparable and not (same and _as_it_was(epoch, state)):
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
        random, before = self.now(), self.start()
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
                f"{said(error)}. The state may be damaged"
            ) from error

    def _load(self, sampler_state: Any) -> None:
        kept = stateful_part(self.sampler)
        if kept is not None and sampler_state is not None:
            kept.load_state_dict(sampler_state)

    def _again(
        self, state: Mapping[str, Any], sampler_state: Any, seed: int | None, begin: bool
    ) -> Epoch:
        """Reopen the epoch of a state, with the random states of then.

        A sampler with a state of its own continues from `sampler_state`, its generator included.
        """
        then, first = (
            None if said is None else RandomStates.from_json(said, self.sampler, self.generator)
            for said in map(state["start"].get, ("random", "first"))
        )
        if then is not None:
            then.set_generators()
        elif seed is None:
            seed = state["drawn_seed"]
        self._load(sampler_state)
        same = then is not None and first is None and then.everywhere == self.now().everywhere
        if begin and same:
            then = None  # else the next epoch would be this one again
        epoch = self._open(seed, then, first)
        epoch.start = dict(state["start"])
        return epoch


def _as_it_was(epoch: Epoch, state: Mapping[str, Any]) -> bool:
    """Return True if a reopened epoch continues with the batch that the state names, if any."""
    return "upcoming" not in state or epoch.upcoming() == state["upcoming"]
