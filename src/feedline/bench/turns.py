"""Who is measured when: all in turn, several times over, since machines are noisy."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Turns", "plan_turns"]

_ROUNDS = 5
_FEWER_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Turns:
    """How many rounds there are, and how long each contestant's turn in a round is."""

    rounds: int
    seconds: float


def plan_turns(contestants: int, seconds: float, refill_s: float) -> Turns:
    """Divide the time to count in.

    Args:
        contestants: how many are measured.
        seconds: the time for all of them.
        refill_s: what a loader takes after its turn to make batches ahead, which is not counted:
            where this is longer than the turn itself, there are fewer turns.
    """
    rounds = _ROUNDS if refill_s * contestants * _ROUNDS <= seconds else _FEWER_ROUNDS
    return Turns(rounds, seconds / (contestants * rounds))
