"""What a user can ask of a loader, and set on it, while it lives.

Guarantees: what is set reaches the next batch handed out, or the next epoch; what is asked
changes nothing that is under way.
Relies on: `DataLoader`, which has the arguments and the attributes that this mixin reads.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from feedline.errors import UsageError
from feedline.loader.checks import check_size
from feedline.loader.explain import explain
from feedline.loader.live_controls import LiveControls
from feedline.loader.planning import plan_of
from feedline.loader.rank_agreement import RankAgreement
from feedline.loader.session import Session
from feedline.loader.settings import Asked, Settings, settings_of
from feedline.plan.batches import Batch, Plan
from feedline.plan.schedule import Phase
from feedline.plan.state import is_count
from feedline.report.print_why import print_why
from feedline.sampling.samplers import share_of
from feedline.trace.recorder import Recorder
from feedline.trace.run import Run
from feedline.trace.split import Timing

__all__ = ["Controls"]


class Controls(LiveControls):
    """The position, the workers and the life of a loader."""

    batch_sampler: Any
    _index_sampler: Any
    _asked: Asked
    _arguments: dict[str, Any]
    _planned_batches: object
    _session: Session
    _agreement: RankAgreement
    _finalizer: weakref.finalize[Any, Any]

    def _settings(self) -> Settings:
        """What the attributes say now."""
        return settings_of(self, self._asked, self._plan_now())

    def _plan_now(self) -> Plan | None:
        """The plan for the dataset's length and the ranks as they are now."""
        if self._planned_batches is None or self.batch_sampler is not self._planned_batches:
            return None  # a framework has put another batch sampler in its place
        return plan_of(self._asked, self._arguments)

    @property
    def plan(self) -> Plan | None:
        """The order that feedline makes; None where samplers or the dataset make it."""
        return self._session.settings.plan

    def __len__(self) -> int:
        """Batches in the current epoch."""
        return self.steps_in(self.epoch)

    @property
    def epoch(self) -> int:
        """The epoch under way, or else the one that the next iteration runs. From 0."""
        return self._session.cursor.position.epoch

    @property
    def epochs(self) -> int | None:
        """Epochs of the schedule; None without one."""
        return None if self._asked.schedule is None else self._asked.schedule.epochs

    @property
    def total_steps(self) -> int:
        """Batches over the whole schedule."""
        plan = self._current_plan()
        return plan.total_steps if plan else len(self) * (self.epochs or 1)

    def steps_in(self, epoch: int) -> int:
        """Batches of an epoch."""
        plan = self._current_plan()
        return plan.steps(epoch) if plan else self._session.cursor.steps(epoch)

    def _current_plan(self) -> Plan | None:
        """The plan of the epoch under way, or else of the one to come."""
        return self.plan if self._session.given else self._plan_now()

    @property
    def batch(self) -> Batch | None:
        """What was planned for the batch handed out last: sample numbers, size, padding."""
        return self._session.batch

    @property
    def phase(self) -> Phase:
        """The phase of the batch handed out last, or before the first, of the one to come."""
        return self.batch.phase if self.batch else self._session.cursor.phase

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` what the next iteration runs, or the one that has given nothing yet."""
        self._session.ensure_usable()
        if not is_count(epoch):
            raise UsageError(f"an epoch must be a whole number of at least 0, got {epoch!r}")
        self._session.move(lambda cursor: cursor.set_epoch(epoch))

    def set_step(self, step: int) -> None:
        """Make the next iteration leave out the first `step` batches of its epoch, unmade.

        Where the epoch has fewer, nothing is left of it. An iteration under way goes on by itself;
        the next one is of the epoch behind it.

        Raises:
            UsageError: a state was loaded that stands at a later step, or the dataset is an
                IterableDataset.
        """
        self._session.ensure_usable()
        if not is_count(step):
            raise UsageError(f"a step must be a whole number of at least 0, got {step!r}")
        self._adopt_before_epoch()
        self._session.move(lambda cursor: cursor.set_step(step))

    def set_image_size(self, size: int | None) -> None:
        """Make the next batch handed out, and all after it, of this size in pixels.

        Args:
            size: side of the images; None follows the schedule again.

        Raises:
            UsageError: larger than `max_image_size`, or nothing in the dataset can be made at a
                size.
        """
        self._session.ensure_usable()
        if size is not None:
            check_size("image_size", size)
        self._session.set_image_size(size)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: small and JSON-able; where it plans itself, on every rank."""
        self._adopt_before_epoch()
        return self._session.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with exactly the batches that the state's loader had not handed out.

        Where it fails, nothing has changed. A state whose pixels were made in another way is
        loaded with a warning that says how.

        Raises:
            StateError: the state is of another dataset, seed, order, sampler or schedule.
            UsageError: the state's image size is above `max_image_size`.
        """
        self._session.ensure_usable()
        self._adopt_before_epoch()
        self._session.load(state)
        self._agreement.forget()

    def _adopt_before_epoch(self) -> None:
        """Follow torch.distributed, or a dataset's new length, unless an epoch is under way.

        Lightning, for one, sets torch.distributed up in `fit`, to which the loader is given.
        """
        if not self._session.given:
            self._session.adopt(self._settings())

    def refresh(self) -> None:
        """Look at the dataset anew, and start new workers, when the next iteration begins.

        For changes that `iter()` does not see by itself while workers are kept: the contents of
        arrays and of lists with more than 1000 entries, and what lies deeper inside the dataset
        than its attributes, those of datasets and transforms in it, and those of its objects.
        """
        self._session.ensure_usable()
        self._session.refresh()

    # Workers

    @property
    def ranks(self) -> int:
        """How many processes the samples are shared among."""
        plan = self._current_plan()
        return plan.world_size if plan else share_of(self._index_sampler)[1]

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._session.backend.pids

    @property
    def worker_deaths(self) -> list[str]:
        """How each worker died that had to be replaced."""
        return self._session.deaths

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Samples left out so far: their names and why."""
        return self._session.skipped

    @property
    def timing(self) -> Timing:
        """Where the time of the steps goes."""
        return self._session.timing

    @property
    def run(self) -> Run:
        """Where the time of this loader's steps has gone so far; see `feedline.trace.run`."""
        return self.recorder.run()

    def why(self) -> None:
        """Print what holds this loader's training back, and what to do about it.

        As HTML in a notebook, in colours in a terminal, as text elsewhere.
        """
        print_why(self.run)

    @property
    def recorder(self) -> Recorder:
        """Writes that down."""
        return self._session.recording.recorder

    def explain(self, *, measure: bool = False) -> str:
        """What will run, in words: one fact a line; looks at the dataset as it is now.

        With a schedule that was trained for a while, or with `measure=True`, also a forecast: what
        each phase needs.

        Args:
            measure: also predict images/s for each size of the schedule, where feedline makes the
                rows itself: up to 100 of each are made in this process, in at most about a second,
                from samples spread over the dataset. Of a cache it says whether memory holds what
                the phases read. Neither random states nor an iteration under way are touched.

        Example:
            >>> print(loader.explain(measure=True))                               # doctest: +SKIP
        """
        decision = self._session.decision()
        settings = self._settings()
        return explain(settings, decision, self.memory_bytes, self.run, measure=measure)

    @property
    def memory_bytes(self) -> int:
        """What is allocated for batches now: by rows all there will be, else what they needed."""
        return self._session.backend.memory_bytes

    # Life

    def close(self) -> None:
        """End the workers. Batches that were handed out stay valid. May be called twice."""
        self._finalizer()
