"""Position of a loader in its planned order, and the JSON-able state of it.

Guarantees: each iteration is one epoch; each batch is delivered once; upcoming batches are known
across epoch and phase edges. A state that is accepted continues with exactly the samples not yet
delivered, in the same order and with the same pixels; any other state is rejected, with each
difference named. Pure bookkeeping: no process, no clock.

Rules: an iteration begins at the position. When it ends, the next epoch follows. Leaving it after
some batches ends it too: the next iteration begins a new epoch, as torch's DataLoader draws a new
permutation. Leaving it before the first batch has no effect. The next iteration continues a
restored position within an epoch.

Relies on: the state contains everything that affects the remaining batches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedline.errors import StateError, UsageError
from feedline.order.batch_spec import BatchSpec
from feedline.order.planned_order import Order
from feedline.order.schedule import Phase, is_count, is_size
from feedline.order.seeds import mix

__all__ = [
    "STATE_VERSION",
    "PlannedPosition",
    "Position",
    "check_same_run",
    "check_state",
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


def _identity(plan: Order, dataset: str) -> dict[str, Any]:
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


def snapshot(plan: Order, position: Position, dataset: str) -> dict[str, Any]:
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


def resume(state: Mapping[str, Any], plan: Order, dataset: str) -> Position:
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


def _differs(found: object, mine: object) -> bool:
    """Return True if two values differ or cannot be compared."""
    try:
        return type(found) is not type(mine) or bool(found != mine)
    except Exception:  # e.g. an array, whose comparison has no one truth
        return True


class PlannedPosition:
    """Position of one loader.

    Args:
        plan: batches of all epochs.
        endless: there is no last epoch. Otherwise upcoming batches end with the schedule; a loader
            iterated beyond it continues one epoch at a time.
    """

    def __init__(self, plan: Order, *, endless: bool) -> None:
        self._plan = plan
        self.endless = endless
        """Whether batches beyond the schedule are upcoming, too; used by the next `ahead`."""
        self.by_epoch = False
        """Whether the batches of `ahead` end with the current epoch; used by the next `ahead`."""
        self._begun = False  # a batch was handed out since the position was come to
        self._horizon = 0  # the way ahead, as last given out, ends before this epoch
        self.restored_step = 0
        """Step of the next epoch at which a loaded state continues."""
        self.to_leave_out = 0
        """Number of batches at the beginning of the next epoch that `set_step` skips."""
        self.position = Position()

    def replan(self, plan: Order) -> None:
        """Continue from the same position with another plan, for another share."""
        self._plan = plan

    def begin(self) -> bool:
        """Begin an iteration. Return True if prefetched batches are stale."""
        cut_short = self._begun and not self.at_end()
        if self._begun:
            self.finish()
        endless = self.endless and not self.by_epoch
        return cut_short or not (endless or self.position.epoch < self._horizon)

    def order_changed(self) -> bool:
        """Return False: a plan does not change."""
        return False

    def at_end(self) -> bool:
        """True if the epoch has no batches left."""
        return self.position.step >= self._plan.steps(self.position.epoch)

    def delivered(self, batch: BatchSpec) -> None:
        """Record the delivery of a batch. Ctrl-C leaves it either recorded or not."""
        size = self.position.image_size
        behind = Position(epoch=batch.epoch, step=batch.step + 1, image_size=size)
        self._begun, self.restored_step, self.to_leave_out, self.position = True, 0, 0, behind

    def finish(self) -> None:
        """End the iteration, at the end of the epoch or earlier. The next epoch follows."""
        self.restore(replace(self.position, epoch=self.position.epoch + 1, step=0))

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration with `epoch`. Return True if upcoming batches change.

        A position restored within this epoch stays, and its remaining batches follow. So does a
        step set with `set_step`.
        """
        if not self._begun and epoch == self.position.epoch:
            return False
        step = 0 if self._begun else self.to_leave_out
        self.restore(replace(self.position, epoch=epoch, step=0))
        if step:
            self.set_step(step)
        return True

    def set_step(self, step: int) -> bool:
        """Begin the next iteration at a step of its epoch. Return True if upcoming batches change.

        A state from the end of an epoch counts as one from the beginning of the next.
        """
        before = self.position
        at_end = self.restored_step >= self._plan.steps(before.epoch)
        if self._begun or (at_end and step < self.restored_step):
            self.finish()
        standing = self.position.at(self.restored_step).later(step)
        self.position = standing.at(min(step, self._plan.steps(standing.epoch)))
        self.to_leave_out = step
        return self.position != before

    def set_image_size(self, size: int | None) -> bool:
        """Set the image size of all following batches. None returns to the schedule."""
        changed = size != self.position.image_size
        self.position = replace(self.position, image_size=size)
        return changed

    @property
    def phase(self) -> Phase:
        """Phase at the position."""
        return self._plan.schedule.phase_at(self.position.epoch)

    def phase_in(self, epoch: int) -> Phase:
        """Phase of an epoch."""
        return self._plan.schedule.phase_at(epoch)

    @property
    def restored(self) -> bool:
        """True if the next iteration continues a restored epoch."""
        return not self._begun and self.position.step > 0

    @property
    def seed(self) -> int:
        """Seed of this rank's randomness in the epoch, 64 bits."""
        return mix(self._plan.seed, self.position.epoch, self._plan.rank)

    def steps(self, epoch: int) -> int:
        """Number of batches of an epoch."""
        return self._plan.steps(epoch)

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Position as a state; `identity["dataset"]` is the fingerprint of the dataset."""
        return snapshot(self._plan, self.position, identity["dataset"])

    def load(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        """Restore the position of a state. Raises the same errors as `resume`."""
        self.restore(resume(state, self._plan, identity["dataset"]))

    def fork(self) -> PlannedPosition | None:
        """Create a cursor for an iteration that continues on its own; None before its first batch.

        An iteration without a delivered batch begins the next epoch when it continues.
        """
        return copy.copy(self) if self._begun else None

    def restore(self, position: Position) -> None:
        """Set the position. The current iteration, or a new one, continues there."""
        step = position.step
        self._begun, self.to_leave_out, self.position, self.restored_step = False, 0, position, step

    def ahead(self) -> Iterator[BatchSpec]:
        """Upcoming batches from the position on, in order."""
        position = self.position
        if self.by_epoch:
            self._horizon = position.epoch + 1
            return self._walk(position, self._horizon)
        self._horizon = max(self._plan.schedule.epochs, position.epoch + 1)
        return self._walk(position, None if self.endless else self._horizon)

    def _walk(self, position: Position, horizon: int | None) -> Iterator[BatchSpec]:
        epoch, step, size = position.epoch, position.step, position.image_size
        while horizon is None or epoch < horizon:
            for k in range(step, self._plan.steps(epoch)):
                batch = self._plan.batch(epoch, k)
                yield batch if size is None else replace(batch, image_size=size)
            epoch, step = epoch + 1, 0
