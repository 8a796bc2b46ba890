"""Position of a run as a small JSON-able state, and the check that a plan can resume from it.

Guarantees: a state that `resume` accepts continues with exactly the samples not yet delivered, in
the same order and with the same pixels; any other state is rejected, with each difference named.
Relies on: the state contains everything that affects the remaining batches.
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
    """Position of the next batch: `step` batches of `epoch` have been delivered.

    `image_size` overrides the schedule's size from here on; None follows the schedule.
    """

    epoch: int = 0
    step: int = 0
    image_size: int | None = None

    def at(self, step: int) -> Position:
        """Same position at another step of the epoch."""
        return Position(epoch=self.epoch, step=step, image_size=self.image_size)

    def later(self, step: int) -> Position:
        """Same position at a later step, for an epoch without delivered batches.

        Raises:
            UsageError: the step is an earlier one.
        """
        if step < self.step:
            raise UsageError(
                f"cannot begin at step {step}: a loaded state is at step {self.step} of epoch "
                f"{self.epoch}; iterate the loader, or call set_epoch first"
            )
        return self.at(step)


def _identity(plan: Plan, dataset: str) -> dict[str, Any]:
    """Everything that affects the remaining batches, independent of the number of ranks."""
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
    """State of a run: JSON-able, a few hundred bytes, the same on every rank.

    Args:
        plan: plan of the run.
        position: position of the next batch.
        dataset: fingerprint of the source.
    """
    return {
        "version": STATE_VERSION,
        "epoch": position.epoch,
        "step": position.step,
        "image_size": position.image_size,
        **_identity(plan, dataset),
    }


def resume(state: Mapping[str, Any], plan: Plan, dataset: str) -> Position:
    """Return the position at which `plan` continues from a state.

    Raises:
        StateError: the state is not a loader state, or belongs to another dataset, seed, order or
            schedule; the message names each difference.
    """
    check_state(state)
    check_same_run(state, _identity(plan, dataset))
    position = position_in(state)
    steps = plan.steps(position.epoch)
    if position.step > steps:
        raise StateError(
            f"cannot resume: the state is at step {position.step} of an epoch with {steps} steps"
        )
    return position


def check_state(state: Mapping[str, Any]) -> None:
    """Check that a state comes from a loader.

    Raises:
        StateError: it is not a loader state, or has another version.
    """
    found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
    if _differs(found, STATE_VERSION):
        raise StateError(
            f"cannot resume: expected a loader state of version {STATE_VERSION}, got {found!r}; "
            "pass the value of DataLoader.state_dict()"
        )


def check_same_run(
    state: Mapping[str, Any],
    mine: Mapping[str, Any],
    remedy: str = "Build the loader with the arguments the state was saved with (with several "
    "ranks, batch_size times world_size must stay the same), or start from the beginning",
) -> None:
    """Check that a state belongs to the same run.

    Args:
        state: saved state.
        mine: values that must be equal in the state.
        remedy: sentence about how to fix differences.

    Raises:
        StateError: something differs; the message names each difference.
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
    """Return the position in a state.

    Raises:
        StateError: the state has no valid position.
    """
    epoch, step, size = state.get("epoch"), state.get("step"), state.get("image_size")
    if not (is_count(epoch) and is_count(step) and (size is None or is_size(size))):
        raise StateError(
            f"cannot resume: damaged position, epoch {epoch!r}, step {step!r}, image size {size!r}"
        )
    return Position(epoch=epoch, step=step, image_size=size)


def is_count(value: object) -> TypeGuard[int]:
    """Return True if a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_size(value: object) -> TypeGuard[int]:
    """Return True if a value is a valid image side in pixels."""
    return is_count(value) and 1 <= value <= MAX_SIZE_PX


def _differs(found: object, mine: object) -> bool:
    """Return True if two values differ or cannot be compared."""
    try:
        return type(found) is not type(mine) or bool(found != mine)
    except Exception:  # e.g. an array, whose comparison has no one truth
        return True
