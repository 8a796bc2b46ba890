"""Where a run stands, small and JSON-able, and whether a plan may go on from there.

Guarantees: a state that `resume` accepts continues with exactly the samples that were not yet
delivered, in the same order and with the same pixels; anything else is refused by name.
Relies on: every difference that would change the remainder is part of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from feedline.errors import StateError, UsageError
from feedline.plan.batches import Plan
from feedline.plan.schedule import MAX_SIZE_PX

__all__ = [
    "STATE_VERSION",
    "Position",
    "check_same_run",
    "check_state",
    "is_count",
    "is_size",
    "position_in",
    "resume",
    "snapshot",
]

STATE_VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The next batch to hand out: `step` batches of `epoch` have been delivered.

    `image_size` overrides the schedule's size from here on; None follows the schedule.
    """

    epoch: int = 0
    step: int = 0
    image_size: int | None = None

    def at(self, step: int) -> Position:
        """The same, at another step of the epoch."""
        return Position(epoch=self.epoch, step=step, image_size=self.image_size)

    def later(self, step: int) -> Position:
        """The same, at a later step of an epoch that nothing was handed out of here.

        Raises:
            UsageError: the step is an earlier one.
        """
        if step < self.step:
            raise UsageError(
                f"the loader was brought to step {self.step} of epoch {self.epoch} by a state, "
                f"and is to begin at step {step}; iterate it, or call set_epoch first"
            )
        return self.at(step)


def _identity(plan: Plan, dataset: str) -> dict[str, Any]:
    """All that decides the remainder, independent of the number of ranks."""
    weights = {} if plan.weights is None else {"weights": plan.weights.digest}
    return {
        "dataset": dataset,
        "length": plan.length,
        "seed": plan.seed,
        "order": plan.order,
        **weights,
        "drop_last": plan.drop_last,
        "schedule": [
            {
                "size": phase.size,
                "epochs": phase.epochs,
                "global_batch": plan.global_batch_of(phase),
                "strength": phase.strength,
            }
            for phase in plan.schedule.phases
        ],
    }


def snapshot(plan: Plan, position: Position, dataset: str) -> dict[str, Any]:
    """The state of a run: JSON-able, some hundred bytes, the same on every rank.

    Args:
        plan: the plan that is being followed.
        position: how far it has been delivered.
        dataset: the source's fingerprint.
    """
    return {
        "version": STATE_VERSION,
        "epoch": position.epoch,
        "step": position.step,
        "image_size": position.image_size,
        **_identity(plan, dataset),
    }


def resume(state: Mapping[str, Any], plan: Plan, dataset: str) -> Position:
    """The position at which `plan` goes on from a state.

    Raises:
        StateError: the state is no state of feedline's, or of another dataset, seed, order or
            schedule; names each difference.
    """
    check_state(state)
    check_same_run(state, _identity(plan, dataset))
    position = position_in(state)
    steps = plan.steps(position.epoch)
    if position.step > steps:
        raise StateError(f"cannot resume: step {position.step} of an epoch that has {steps} steps")
    return position


def check_state(state: Mapping[str, Any]) -> None:
    """Refuse what no loader has given.

    Raises:
        StateError: it is no state, or one of another version.
    """
    found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
    if _differs(found, STATE_VERSION):
        raise StateError(
            f"cannot resume: expected a loader state of version {STATE_VERSION}, found {found!r}; "
            "pass what DataLoader.state_dict() returned"
        )


def check_same_run(
    state: Mapping[str, Any],
    mine: Mapping[str, Any],
    remedy: str = "Build the loader with the values the state was saved with (over several ranks "
    "batch_size times world_size must stay the same), or start anew",
) -> None:
    """Refuse a state of another run.

    Args:
        state: what was saved.
        mine: what must be the same in it.
        remedy: what to do about differences, a sentence.

    Raises:
        StateError: something differs; names all that does.
    """
    differences = [
        f"{name} was {state.get(name)!r}, is {mine[name]!r}"
        for name in mine
        if _differs(state.get(name), mine[name])
    ]
    if differences:
        raise StateError(
            f"cannot resume: the state belongs to another run ({'; '.join(differences)}). {remedy}"
        )


def position_in(state: Mapping[str, Any]) -> Position:
    """The position that a state holds.

    Raises:
        StateError: it is none.
    """
    epoch, step, size = state.get("epoch"), state.get("step"), state.get("image_size")
    if not (is_count(epoch) and is_count(step) and (size is None or is_size(size))):
        raise StateError(
            f"cannot resume: damaged position, epoch {epoch!r}, step {step!r}, image size {size!r}"
        )
    return Position(epoch=epoch, step=step, image_size=size)


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_size(value: object) -> TypeGuard[int]:
    """Whether a value is a side of images in pixels."""
    return is_count(value) and 1 <= value <= MAX_SIZE_PX


def _differs(found: object, mine: object) -> bool:
    """Whether two values differ; what cannot be compared does."""
    try:
        return type(found) is not type(mine) or bool(found != mine)
    except Exception:  # e.g. an array, whose comparison has no one truth
        return True
