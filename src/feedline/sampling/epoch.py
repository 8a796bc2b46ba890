"""One epoch drawn from torch's samplers: its position, and what it depends on.

Guarantees: each batch is delivered once, in order or early; different sequences of batches have
different digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from feedline.errors import StateError
from feedline.order.position import Position
from feedline.order.schedule import is_count
from feedline.sampling.draws import Draw, Draws
from feedline.sampling.random_states import RandomStates

__all__ = ["Epoch", "EpochProgress", "check_record"]


class EpochProgress(NamedTuple):
    """Position within an epoch.

    Args:
        step: number of consecutive batches delivered or skipped.
        digest: digest of their keys.
        early: later steps that were delivered early.
        sampler_state: the sampler's state after the last of these batches, if it has one.
    """

    step: int = 0
    digest: int = 0
    early: frozenset[int] = frozenset()
    sampler_state: dict[str, Any] | None = None


@dataclass
class Epoch:
    """An opened epoch: its draws, its position, and what it depends on.

    Args:
        draws: pass over the sampler.
        seed: seed of random transforms.
        random: random states before the pass.
        start: what is needed to open it again, JSON-able.
        first: first step of the pass.
    """

    draws: Draws
    seed: int
    random: RandomStates
    start: dict[str, Any]
    first: int = 0
    progress: EpochProgress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = EpochProgress(self.first, sampler_state=self.draws.sampler_state)

    @property
    def step(self) -> int:
        """Number of consecutive batches delivered or skipped."""
        return self.progress.step

    def after(self, step: int) -> EpochProgress:
        """Position after one more batch is delivered, in order or early.

        Forgets draws before the current position.
        """
        now = self.progress
        self.draws.forget(now.step - self.first)
        if step != now.step:
            return now._replace(early=now.early | {step})
        digest, early, state = now.digest, now.early, now.sampler_state
        while step == now.step or step in early:
            draw = self.draws.at(step - self.first)
            assert draw is not None, "no batch after the end of the epoch"
            step, digest, state = step + 1, draw.digest(digest), draw.state
        return EpochProgress(step, digest, early and frozenset(e for e in early if e > step), state)

    def skip_to(self, until: int) -> None:
        """Skip to a step, or to the end."""
        while self.step < until and self.draws.at(self.step - self.first) is not None:
            self.progress = self.after(self.step)

    def at_end(self) -> bool:
        """Return True if no batches are left; asks the sampler if that is unknown."""
        step, early = self.progress.step, self.progress.early
        while step in early:
            step += 1
        return self.draws.at(step - self.first) is None

    def ahead(self) -> Iterator[tuple[int, Draw]]:
        """Remaining steps and their draws; continues while batches are delivered."""
        step = self.step
        while (draw := self.draws.at(step - self.first)) is not None:
            if step not in self.progress.early:
                yield step, draw
            step += 1

    def upcoming(self) -> int | None:
        """Digest of the next draw; None at the end."""
        draw = self.draws.at(self.step - self.first)
        return None if draw is None else draw.digest(0)

    def record(self) -> dict[str, Any]:
        """Entries of a state about this epoch, JSON-able if the sampler's own state is."""
        # Drawing the next batch here would change the order if others draw from the random state.
        # A sampler that keeps its own state is asked: only its next batch tells where it stands.
        asked = self.draws.begun and not self.draws.broken
        keeps_state = self.progress.sampler_state is not None
        known = asked and (keeps_state or self.draws.has(self.step - self.first))
        return {
            "drawn": self.progress.digest,
            "early": sorted(self.progress.early),
            "drawn_seed": self.seed,
            "start": self.start,
            "sampler_state": self.progress.sampler_state,
            **({"upcoming": self.upcoming()} if known else {}),
        }


def check_record(state: Mapping[str, Any], position: Position) -> bool:
    """Return True if a state's record belongs to an opened epoch.

    Raises:
        StateError: the state is damaged.
    """
    early = state.get("early", [])
    whole = isinstance(early, list) and all(map(is_count, early))
    whole = whole and isinstance(state["start"], Mapping)
    whole = whole and is_count(state.get("steps_to_skip", 0))
    opened = is_count(state.get("drawn_seed"))
    unopened = state.get("drawn_seed", 0) is None and position.step == 0 and not early
    if not (whole and (opened or unopened)):
        raise StateError(
            "cannot resume: the state is damaged: invalid 'early', 'drawn_seed' or 'start'"
        )
    return opened
