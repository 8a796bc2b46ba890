"""Position of a loader in its planned epochs.

Guarantees: each iteration is one epoch; each batch is delivered once; upcoming batches are known
across epoch and phase edges. Pure bookkeeping: no process, no clock.

Rules: an iteration begins at the position. When it ends, the next epoch follows. Leaving it after
some batches ends it too: the next iteration begins a new epoch, as torch's DataLoader draws a new
permutation. Leaving it before the first batch has no effect. The next iteration continues a
restored position within an epoch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from feedline.plan.batches import Batch, Plan
from feedline.plan.schedule import Phase
from feedline.plan.seeds import mix
from feedline.plan.state import Position, resume, snapshot

__all__ = ["PlannedCursor"]


class PlannedCursor:
    """Position of one loader.

    Args:
        plan: batches of all epochs.
        endless: there is no last epoch. Otherwise upcoming batches end with the schedule; a loader
            iterated beyond it continues one epoch at a time.
    """

    def __init__(self, plan: Plan, *, endless: bool) -> None:
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

    def replan(self, plan: Plan) -> None:
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

    def delivered(self, batch: Batch) -> None:
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

    def fork(self) -> PlannedCursor | None:
        """Create a cursor for an iteration that continues on its own; None before its first batch.

        An iteration without a delivered batch begins the next epoch when it continues.
        """
        return copy.copy(self) if self._begun else None

    def restore(self, position: Position) -> None:
        """Set the position. The current iteration, or a new one, continues there."""
        step = position.step
        self._begun, self.to_leave_out, self.position, self.restored_step = False, 0, position, step

    def ahead(self) -> Iterator[Batch]:
        """Upcoming batches from the position on, in order."""
        position = self.position
        if self.by_epoch:
            self._horizon = position.epoch + 1
            return self._walk(position, self._horizon)
        self._horizon = max(self._plan.schedule.epochs, position.epoch + 1)
        return self._walk(position, None if self.endless else self._horizon)

    def _walk(self, position: Position, horizon: int | None) -> Iterator[Batch]:
        epoch, step, size = position.epoch, position.step, position.image_size
        while horizon is None or epoch < horizon:
            for k in range(step, self._plan.steps(epoch)):
                batch = self._plan.batch(epoch, k)
                yield batch if size is None else replace(batch, image_size=size)
            epoch, step = epoch + 1, 0
