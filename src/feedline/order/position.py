"""Position of a loader in its planned order, and its JSON-able state. No process, no clock.

An iteration is one epoch from the position on. Leaving it after its first batch ends the epoch, as
in torch; leaving it earlier has no effect. After a state is loaded the epoch continues.
Guarantees: each batch is delivered once. A loaded state continues with exactly the samples not yet
delivered, in the same order and with the same pixels; a state of another run is rejected, and the
error names each difference.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from feedline.errors import StateError, UsageError
from feedline.order.batch_spec import BatchSpec
from feedline.order.planned_order import Order
from feedline.order.schedule import Phase, is_count, is_image_size
from feedline.order.seeds import mix

__all__ = [
    "STATE_VERSION",
    "PlannedPosition",
    "Position",
    "check_same_run",
    "check_state",
    "position_in",
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

    def at_step(self, step: int) -> Position:
        """Same position at another step of the epoch."""
        return Position(epoch=self.epoch, step=step, image_size=self.image_size)

    def skip_to(self, step: int) -> Position:
        """Same position at a later step, for an epoch without delivered batches.

        Raises:
            UsageError: the step is an earlier one.
        """
        if step < self.step:
            raise UsageError(
                f"cannot begin at step {step}: a loaded state is at step {self.step} of epoch "
                f"{self.epoch}; iterate the loader, or call set_epoch first"
            )
        return self.at_step(step)


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
    identity: Mapping[str, Any],
    remedy: str = "Build the loader with the arguments the state was saved with (with several "
    "ranks, batch_size times world_size must stay the same), or start from the beginning",
) -> None:
    """Check that a state belongs to the same run.

    Args:
        state: saved state.
        identity: values that must be equal in the state.
        remedy: sentence about how to fix differences.

    Raises:
        StateError: something differs; the message names each difference.
    """
    differences = [
        f"{name} was {state.get(name)!r}, is {value!r}"
        for name, value in identity.items()
        if _differs(state.get(name), value)
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
    epoch, step, image_size = (state.get(name) for name in ("epoch", "step", "image_size"))
    if not (
        is_count(epoch) and is_count(step) and (image_size is None or is_image_size(image_size))
    ):
        raise StateError(
            f"cannot resume: damaged position, epoch {epoch!r}, step {step!r}, image size "
            f"{image_size!r}"
        )
    return Position(epoch=epoch, step=step, image_size=image_size)


def _differs(found: object, expected: object) -> bool:
    """Return True if two values differ or cannot be compared."""
    try:
        return type(found) is not type(expected) or bool(found != expected)
    except Exception:  # e.g. the comparison of an array is not a single bool
        return True


class PlannedPosition:
    """Position of one loader in its planned order.

    Args:
        order: planned order of all epochs.
        endless: upcoming batches continue after the schedule. If False, they end with it, and a
            loader iterated beyond it continues one epoch at a time.
    """

    def __init__(self, order: Order, *, endless: bool) -> None:
        self._order = order
        self.endless = endless
        """True if upcoming batches continue after the schedule; read by the next `upcoming`."""
        self.stops_after_epoch = False
        """True if upcoming batches end with the current epoch; read by the next `upcoming`."""
        self._has_delivered = False  # True if a delivery was the last change of `current`
        self._upcoming_until = 0  # end of the latest `upcoming`: this epoch is excluded
        self.restored_step = 0
        """Step of the next epoch at which a loaded state continues."""
        self.steps_to_skip = 0
        """Number of batches at the beginning of the next epoch that `set_step` skips."""
        self.current = Position()
        """Position of the next batch."""

    def replace_order(self, order: Order) -> None:
        """Continue from the same position with another order."""
        self._order = order

    def begin(self) -> bool:
        """Begin an iteration. Return True if prefetched batches are stale."""
        was_left_early = self._has_delivered and not self.is_at_end()
        if self._has_delivered:
            self.finish()
        endless = self.endless and not self.stops_after_epoch
        return was_left_early or not (endless or self.current.epoch < self._upcoming_until)

    def order_changed(self) -> bool:
        """Return False: a planned order does not change."""
        return False

    def is_at_end(self) -> bool:
        """Return True if the epoch has no batches left."""
        return self.current.step >= self._order.steps(self.current.epoch)

    def record_delivery(self, batch: BatchSpec) -> None:
        """Move past a delivered batch. Ctrl-C leaves it either recorded or not."""
        image_size = self.current.image_size
        after = Position(epoch=batch.epoch, step=batch.step + 1, image_size=image_size)
        # One assignment, which Ctrl-C cannot interrupt.
        self._has_delivered, self.restored_step, self.steps_to_skip, self.current = (
            True,
            0,
            0,
            after,
        )

    def finish(self) -> None:
        """End the iteration, at the end of the epoch or earlier. The next epoch follows."""
        self.restore(replace(self.current, epoch=self.current.epoch + 1, step=0))

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration with `epoch`. Return True if upcoming batches change.

        A position within this epoch, from a state or `set_step`, stays valid.
        """
        if not self._has_delivered and epoch == self.current.epoch:
            return False
        step = 0 if self._has_delivered else self.steps_to_skip
        self.restore(replace(self.current, epoch=epoch, step=0))
        if step:
            self.set_step(step)
        return True

    def set_step(self, step: int) -> bool:
        """Begin the next iteration at a step of its epoch. Return True if upcoming batches change.

        A state saved at the end of an epoch counts as the beginning of the next.

        Raises:
            UsageError: the step is before that of a loaded state.
        """
        before = self.current
        at_end = self.restored_step >= self._order.steps(before.epoch)
        if self._has_delivered or (at_end and step < self.restored_step):
            self.finish()
        skipped = self.current.at_step(self.restored_step).skip_to(step)
        self.current = skipped.at_step(min(step, self._order.steps(skipped.epoch)))
        self.steps_to_skip = step
        return self.current != before

    def set_image_size(self, image_size: int | None) -> bool:
        """Set the image size of all following batches. None returns to the schedule.

        Return True if upcoming batches change.
        """
        changed = image_size != self.current.image_size
        self.current = replace(self.current, image_size=image_size)
        return changed

    @property
    def phase(self) -> Phase:
        """Phase at the position."""
        return self.phase_in(self.current.epoch)

    def phase_in(self, epoch: int) -> Phase:
        """Phase of an epoch."""
        return self._order.schedule.phase_at(epoch)

    @property
    def is_restored(self) -> bool:
        """True if the next iteration continues a restored epoch."""
        return not self._has_delivered and self.current.step > 0

    @property
    def seed(self) -> int:
        """Seed of this rank's randomness in the epoch, 64 bits."""
        return mix(self._order.seed, self.current.epoch, self._order.rank)

    def steps(self, epoch: int) -> int:
        """Number of batches of an epoch."""
        return self._order.steps(epoch)

    def upcoming(self) -> Iterator[BatchSpec]:
        """Batches from the position on, in order."""
        start = self.current
        if self.stops_after_epoch:
            self._upcoming_until = start.epoch + 1
            return self._batches(start, self._upcoming_until)
        self._upcoming_until = max(self._order.schedule.epochs, start.epoch + 1)
        return self._batches(start, None if self.endless else self._upcoming_until)

    def _batches(self, start: Position, until: int | None) -> Iterator[BatchSpec]:
        epoch, step, image_size = start.epoch, start.step, start.image_size
        while until is None or epoch < until:
            for k in range(step, self._order.steps(epoch)):
                batch = self._order.batch(epoch, k)
                yield batch if image_size is None else replace(batch, image_size=image_size)
            epoch, step = epoch + 1, 0

    def fork(self) -> PlannedPosition | None:
        """Copy of the position for a detached iteration; None before its first batch.

        Without a delivered batch the iteration begins the next epoch when it continues.
        """
        return copy.copy(self) if self._has_delivered else None

    def restore(self, position: Position) -> None:
        """Set the position. The current iteration, or a new one, continues there."""
        # One assignment, which Ctrl-C cannot interrupt.
        self._has_delivered, self.steps_to_skip, self.restored_step, self.current = (
            False,
            0,
            position.step,
            position,
        )

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """State of the position: JSON-able, a few hundred bytes, the same on every rank.

        Args:
            identity: `identity["dataset"]` is the fingerprint of the dataset.
        """
        return {
            "version": STATE_VERSION,
            "epoch": self.current.epoch,
            "step": self.current.step,
            "image_size": self.current.image_size,
            **self._order.identity(identity["dataset"]),
        }

    def load_state(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises:
            StateError: the state is not a loader state, or belongs to another dataset, seed, order
                or schedule; the message names each difference.
        """
        check_state(state)
        check_same_run(state, self._order.identity(identity["dataset"]))
        position = position_in(state)
        steps = self._order.steps(position.epoch)
        if position.step > steps:
            raise StateError(
                f"cannot resume: the state is at step {position.step} of an epoch with {steps} "
                "steps"
            )
        self.restore(position)
