"""Where a loader stands on its way through the epochs.

Guarantees: every iteration is one epoch; each batch is delivered once; what lies ahead is known
across epoch and phase edges. Pure bookkeeping: no process, no clock.

The rules: an iteration begins at the position. One that runs to its end moves on to the next
epoch. One that was left after some batches is over too: the next begins a new epoch, as torch's
DataLoader draws a new permutation; one that was left before any batch never was. A restored
position in mid-epoch is continued by the next iteration.
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
    """The position of one loader.

    Args:
        plan: which batches there are.
        endless: there is no last epoch; else the batches ahead end with the schedule, and go on
            an epoch at a time when a loader is iterated beyond it.
    """

    def __init__(self, plan: Plan, *, endless: bool) -> None:
        self._plan = plan
        self.endless = endless
        """Whether batches beyond the schedule's end are ahead, too; from the next `ahead` on."""
        self.by_epoch = False
        """True if no batch is ahead of the epoch that it belongs to; from the next `ahead` on."""
        self._begun = False  # a batch was handed out since the position was come to
        self._horizon = 0  # the way ahead, as last given out, ends before this epoch
        self.restored_step = 0
        """Where a state brought it, in the epoch to come."""
        self.to_leave_out = 0
        """How many of the next epoch's first batches `set_step` leaves out."""
        self.position = Position()

    def replan(self, plan: Plan) -> None:
        """Go on from the same position by another plan, of another share."""
        self._plan = plan

    def begin(self) -> bool:
        """An iteration begins. Whether what lies ahead is other than was given out."""
        cut_short = self._begun and not self.at_end()
        if self._begun:
            self.finish()
        endless = self.endless and not self.by_epoch
        return cut_short or not (endless or self.position.epoch < self._horizon)

    def order_changed(self) -> bool:
        """Never: a plan does not change under way."""
        return False

    def at_end(self) -> bool:
        """Whether the epoch has no batch left."""
        return self.position.step >= self._plan.steps(self.position.epoch)

    def delivered(self, batch: Batch) -> None:
        """A batch was handed out; after Ctrl-C in here, it was or was not, and nothing between."""
        size = self.position.image_size
        behind = Position(epoch=batch.epoch, step=batch.step + 1, image_size=size)
        self._begun, self.restored_step, self.to_leave_out, self.position = True, 0, 0, behind

    def finish(self) -> None:
        """The iteration is over, at the epoch's end or before it: the next epoch comes."""
        self.restore(replace(self.position, epoch=self.position.epoch + 1, step=0))

    def set_epoch(self, epoch: int) -> bool:
        """Begin the next iteration with `epoch`; whether that changes what lies ahead.

        A position restored within that very epoch stays: its remainder is what comes next. So does
        a step that was set.
        """
        if not self._begun and epoch == self.position.epoch:
            return False
        step = 0 if self._begun else self.to_leave_out
        self.restore(replace(self.position, epoch=epoch, step=0))
        if step:
            self.set_step(step)
        return True

    def set_step(self, step: int) -> bool:
        """Begin the next iteration at a step of its epoch; whether that changes what lies ahead.

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
        """Make all batches from here on of one size; None follows the schedule again."""
        changed = size != self.position.image_size
        self.position = replace(self.position, image_size=size)
        return changed

    @property
    def phase(self) -> Phase:
        """The phase of the position."""
        return self._plan.schedule.phase_at(self.position.epoch)

    def phase_in(self, epoch: int) -> Phase:
        """The phase of an epoch."""
        return self._plan.schedule.phase_at(epoch)

    @property
    def restored(self) -> bool:
        """Whether the rest of an epoch waits to be gone on with."""
        return not self._begun and self.position.step > 0

    @property
    def seed(self) -> int:
        """What this rank's randomness in the epoch follows from: 64 bits."""
        return mix(self._plan.seed, self.position.epoch, self._plan.rank)

    def steps(self, epoch: int) -> int:
        """Batches of an epoch."""
        return self._plan.steps(epoch)

    def state(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Where the loader stands; `identity["dataset"]` is the fingerprint of the dataset."""
        return snapshot(self._plan, self.position, identity["dataset"])

    def load(self, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
        """Go to where a state says; raises as `resume` does."""
        self.restore(resume(state, self._plan, identity["dataset"]))

    def fork(self) -> PlannedCursor | None:
        """A cursor for an iteration that goes on apart from this one; None before its first batch.

        An iteration that has given nothing begins the next epoch when it is asked.
        """
        return copy.copy(self) if self._begun else None

    def restore(self, position: Position) -> None:
        """Go to a position. An iteration under way goes on from there, and so does a new one."""
        step = position.step
        self._begun, self.to_leave_out, self.position, self.restored_step = False, 0, position, step

    def ahead(self) -> Iterator[Batch]:
        """The batches from the position on, in order."""
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
