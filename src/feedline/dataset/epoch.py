"""One epoch drawn from torch's samplers: opened, and opened once more as a state says.

Guarantees: the sampler and the random states are drawn from as torch's DataLoader draws from them.
What is opened again gives what it gave, from the random states of then or the sampler's own state;
a sampler that does not is refused. The global random state is put back after each draw from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from feedline.dataset.draws import Draws
from feedline.dataset.samplers import describe, epoch_mark, set_epoch, stateful_part
from feedline.dataset.states import RandomStates
from feedline.engine.messages import said
from feedline.errors import StateError
from feedline.plan.state import is_count

__all__ = ["Epoch", "Sampling"]


@dataclass
class Epoch:
    """An epoch that was opened: its draws, and what they follow from.

    Args:
        draws: the pass over the sampler.
        seed: what random transforms follow from.
        mark: the epoch that the sampler was set to; None where it has none.
        random: the random states before the first draw; None where drawing changed none.
        began: the sampler's own state before the first draw.
        restored: where it comes from a state: how it began there.
    """

    draws: Draws
    seed: int
    mark: int | None
    random: RandomStates | None
    began: dict[str, Any] | None
    restored: Mapping[str, Any] | None = None

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

    def upcoming(self) -> int | None:
        """A digest of the next draw; None at the end."""
        draw = self.draws.peek()
        return None if draw is None else draw.digest(0)


@dataclass(frozen=True)
class Sampling:
    """Where epochs come from.

    Args:
        sampler: gives the keys of one batch after another; a new pass for each epoch.
        generator: where a worker's seeds come from; None for torch's global random state.
    """

    sampler: Iterable[Any]
    generator: torch.Generator | None

    def draw_seed(self) -> int:
        """What torch's iterator draws first when it is made: the workers' seed."""
        seed = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return int(seed.item())

    def open(self, seed: int) -> Epoch:
        """Begin a pass, with the random states and the sampler as they are."""
        before = RandomStates.now(self.sampler, self.generator)
        draws = Draws(self.sampler, stateful_part(self.sampler))
        began = draws.sampler_state
        draws.peek()
        drawn = before.differs(RandomStates.now(self.sampler, self.generator))
        return Epoch(draws, seed, epoch_mark(self.sampler), before if drawn else None, began)

    def reopen(self, state: Mapping[str, Any], step: int, *, comparable: bool) -> tuple[Epoch, int]:
        """The epoch of a state at its step, by the sampler's own state or drawing again.

        Args:
            state: as `feedline.dataset.epochs` makes it.
            step: batches that were handed out.
            comparable: it is of this very share of the epoch: digests must be the same.

        Returns:
            The epoch, and the digest of what was handed out of it.

        Raises:
            StateError: the sampler does not give again what it gave, or the state is damaged.
        """
        try:
            return self._reopened(state, step, comparable)
        except StateError:
            raise
        except Exception as error:  # whatever a user's sampler makes of a damaged state
            raise StateError(
                f"cannot resume: {describe(self.sampler)['type']} does not go on from the state: "
                f"{type(error).__name__}: {said(error)}. Is the state damaged?"
            ) from error

    def _reopened(self, state: Mapping[str, Any], step: int, comparable: bool) -> tuple[Epoch, int]:
        mark = state["start"].get("epoch")
        if mark is not None:
            if not is_count(mark):
                raise StateError(f"cannot resume: damaged position, the sampler's epoch {mark!r}")
            set_epoch(self.sampler, mark)
        wanted = state.get("upcoming")
        keeps_state = stateful_part(self.sampler) is not None
        if keeps_state and state.get("sampler_state") is not None:
            epoch = self._again(state, state["sampler_state"])
            if epoch.upcoming() == wanted and is_count(state.get("drawn")):
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
        if comparable and (digest != state.get("drawn") or epoch.upcoming() != wanted):
            raise StateError(
                f"cannot resume: {describe(self.sampler)['type']} gives other samples than when "
                "the state was saved. A sampler must be deterministic, draw from torch's random "
                "state or a torch.Generator in its attribute `generator`, or have state_dict() "
                "and load_state_dict(); was it given another seed?"
            )
        return epoch, digest

    def _again(self, state: Mapping[str, Any], sampler_state: Any) -> Epoch:
        """Open the epoch of a state once more, with the random states of then.

        A sampler that keeps a state goes on from `sampler_state`, a generator of its own included.
        """
        random, seed = state["start"].get("random"), int(state["drawn_seed"])
        then = None
        if random is not None:
            then = RandomStates.from_json(random, self.sampler, self.generator)
        kept = stateful_part(self.sampler)
        if kept is not None and sampler_state is not None:
            kept.load_state_dict(sampler_state)
        if then is None:
            epoch = self.open(seed)
        else:
            draws = Draws(then.replay(self.sampler), kept)
            epoch = Epoch(draws, seed, epoch_mark(self.sampler), then, None)
        epoch.restored = dict(state["start"])
        return epoch
