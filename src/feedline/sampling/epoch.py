"""One epoch drawn from torch's samplers: what was handed out of it, and what it follows from.

Guarantees: each batch is handed out once, in order or before its turn; the digest tells one run of
batches from another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from feedline.errors import StateError
from feedline.plan.state import Position, is_count
from feedline.sampling.draws import Draw, Draws
from feedline.sampling.random_states import RandomStates

__all__ = ["Epoch", "check_record"]


@dataclass
class Epoch:
    """An epoch that was opened: its draws, how many were handed out, and what they follow from.

    Args:
        draws: the pass over the sampler.
        seed: what random transforms follow from.
        random: the random states before the pass.
        start: what is needed to open it again, JSON-able.
        step: how many batches were handed out, or left out, one after the other.
        digest: of their keys.
        early: the steps behind these that were handed out before their turn.
    """

    draws: Draws
    seed: int
    random: RandomStates
    start: dict[str, Any]
    step: int = 0
    digest: int = 0
    early: set[int] = field(default_factory=set)

    def delivered(self, step: int) -> None:
        """A batch was handed out, perhaps before its turn."""
        self.early.add(step)
        while self.step in self.early:
            self.early.remove(self.step)
            self.digest = self.draws.deliver(self.digest)
            self.step += 1

    def leave_out(self, until: int) -> None:
        """Go on to a step, or to the end, and hand out nothing before it."""
        while self.step < until and self.draws.at(0) is not None:
            self.digest = self.draws.deliver(self.digest)
            self.step += 1
        self.early = {early for early in self.early if early >= self.step}

    def at_end(self) -> bool:
        """Whether no batch is left; asks the sampler if that is not known."""
        step = self.step
        while step in self.early:
            step += 1
        return self.draws.at(step - self.step) is None

    def ahead(self) -> Iterator[tuple[int, Draw]]:
        """The steps that are left, and their draws; goes on where batches are handed out."""
        step = self.step
        while (draw := self.draws.at(step - self.step)) is not None:
            if step not in self.early:
                yield step, draw
            step += 1

    def upcoming(self) -> int | None:
        """A digest of the next draw; None at the end."""
        draw = self.draws.at(0)
        return None if draw is None else draw.digest(0)

    def record(self) -> dict[str, Any]:
        """What a state holds of it: JSON-able where the sampler's own state is."""
        record = {
            "drawn": self.digest,
            "early": sorted(self.early),
            "drawn_seed": self.seed,
            "start": self.start,
            "sampler_state": self.draws.sampler_state,
        }
        # The first draw is the iteration's own: others may draw from the random state before it.
        return record | {"upcoming": self.upcoming()} if self.draws.begun else record


def check_record(state: Mapping[str, Any], position: Position) -> bool:
    """Whether an epoch of a state was opened, as its record says.

    Raises:
        StateError: the state is damaged.
    """
    early = state.get("early", [])
    whole = isinstance(early, list) and all(map(is_count, early))
    whole = whole and isinstance(state["start"], Mapping)
    whole = whole and is_count(state.get("to_leave_out", 0))
    opened = is_count(state.get("drawn_seed"))
    unopened = state.get("drawn_seed", 0) is None and position.step == 0 and not early
    if not (whole and (opened or unopened)):
        raise StateError("cannot resume: the state is damaged: early, drawn_seed or start")
    return opened
