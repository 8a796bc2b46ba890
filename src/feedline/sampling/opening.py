"""Where epochs come from: torch's samplers, asked for a pass, and once more as a state says.

Guarantees: the sampler and the random states are drawn from as torch's DataLoader draws from them:
the sampler is asked for a pass, then the workers' seed is drawn, then the first batch. What is
opened again gives what it gave, from the random states of then or the sampler's own state; a
sampler that does not is refused, and left as it was.
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
from feedline.plan.state import Position, is_count
from feedline.sampling.draws import Draws, ask
from feedline.sampling.epoch import Epoch, Standing
from feedline.sampling.epoch_seeds import EpochSeeds
from feedline.sampling.random_states import RandomStates
from feedline.sampling.samplers import describe, draws_nothing, epoch_mark, set_epoch, stateful_part

__all__ = ["Sampling"]


@dataclass
class Sampling:
    """Where epochs come from.

    Args:
        sampler: gives the keys of one batch after another; a new pass for each epoch.
        generator: where the seeds of workers are drawn from; None for torch's global random state.
        seeds: what they are, or that they are drawn.
    """

    sampler: Iterable[Any]
    generator: torch.Generator | None
    seeds: EpochSeeds

    def start(self, random: RandomStates | None = None) -> dict[str, Any]:
        """What an epoch that is opened now would follow from, JSON-able.

        Args:
            random: the random states; None where nothing is drawn from them.
        """
        kept = stateful_part(self.sampler)
        start: dict[str, Any] = {"epoch": epoch_mark(self.sampler)}
        if random is not None:
            start["random"] = random.as_json()
        if kept is not None:
            start["sampler"] = copy.deepcopy(kept.state_dict())
        return start

    def now(self) -> RandomStates:
        """The random states as they are."""
        return RandomStates.now(self.sampler, self.generator)

    def open(self, number: int, then: RandomStates | None = None) -> Epoch:
        """Begin an epoch's pass with the sampler as it is.

        Args:
            number: of the epoch.
            then: the random states to draw from; None for the present ones.
        """
        epoch = self._open(self.seeds.of(number), then, None)
        self.seeds.opened(number, epoch.seed)
        return epoch

    def _open(
        self, seed: int | None, then: RandomStates | None, first: RandomStates | None
    ) -> Epoch:
        """Begin a pass.

        Args:
            seed: of the epoch; None draws it, as torch does.
            then: the random states to draw from; None for the present ones.
            first: those to draw from once the seed is drawn; None to go on with `then`.
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
        """A pass that notes the random states of its first keys, if others drew from them before.

        Without workers these are drawn by the first `next`, which may be long after `iter`.
        """
        seed = next(drawing)
        after = self.now()
        yield seed
        if (first := self.now()) != after:
            start["first"] = first.as_json()
        yield from drawing

    def _pass(self, seed: int | None) -> Iterator[Any]:
        """The epoch's seed, and then the keys of each batch."""
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
        """The epoch of a state at its step, by the sampler's own state or drawing again.

        Args:
            state: as `feedline.sampling.sampled_cursor` makes it.
            position: where it stands.
            comparable: it is of this very share of the epoch: digests must be the same.
            begin: an iteration begins with it: the sampler is as it is set by now, and where the
                random states still are those of then, they are drawn from, not a copy.

        Raises:
            StateError: the sampler does not give again what it gave, or the state is damaged.
        """
        step, seed = position.step, self.seeds.restored(state, position.epoch)
        with self._unchanged_by_errors():
            mark = state["start"].get("epoch")
            if mark is not None and not begin:
                if not is_count(mark):
                    raise StateError(
                        f"cannot resume: damaged position, the sampler's epoch {mark!r}"
                    )
                set_epoch(self.sampler, mark)
            keeps_state = stateful_part(self.sampler) is not None
            if step and keeps_state and state.get("sampler_state") is not None:
                epoch = self._again(state, state["sampler_state"], seed, begin)
                if _as_it_was(epoch, state) and is_count(state.get("drawn")):
                    epoch.first = step
                    kept = epoch.draws.sampler_state
                    early = frozenset(state.get("early", ()))
                    epoch.standing = Standing(step, int(state["drawn"]), early, kept)
                    return epoch
            epoch = self._again(state, state["start"].get("sampler"), seed, begin)
            if begin:
                self.seeds.opened(position.epoch, epoch.seed)
            epoch.leave_out(step)
            if epoch.step < step:
                raise StateError(
                    f"cannot resume: the sampler gave {epoch.step} batches, of which {step} had "
                    "been handed out; has the dataset or the sampler changed?"
                )
            same = epoch.standing.digest == state.get("drawn")
            if comparable and not (same and _as_it_was(epoch, state)):
                raise StateError(
                    f"cannot resume: {describe(self.sampler)['type']} gives other samples than "
                    "when the state was saved. A sampler must be deterministic, draw from torch's "
                    "random state or a torch.Generator in its attribute `generator`, or have "
                    "state_dict() and load_state_dict(); was it given another seed?"
                )
            epoch.standing = epoch.standing._replace(early=frozenset(state.get("early", ())))
            return epoch

    @contextmanager
    def _unchanged_by_errors(self) -> Iterator[None]:
        """Put the sampler and the generators back after an error, which becomes a StateError."""
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
                f"cannot resume: {describe(self.sampler)['type']} does not go on from the state: "
                f"{type(error).__name__}: {said(error)}. Is the state damaged?"
            ) from error

    def _load(self, sampler_state: Any) -> None:
        kept = stateful_part(self.sampler)
        if kept is not None and sampler_state is not None:
            kept.load_state_dict(sampler_state)

    def _again(
        self, state: Mapping[str, Any], sampler_state: Any, seed: int | None, begin: bool
    ) -> Epoch:
        """Open the epoch of a state once more, with the random states of then.

        A sampler that keeps a state goes on from `sampler_state`, a generator of its own included.
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
    """Whether an epoch that was opened again gives next what a state says, if it says that."""
    return "upcoming" not in state or epoch.upcoming() == state["upcoming"]
