"""Position, workers and lifetime of a loader, as a user reads and sets them.

Guarantees: a setting takes effect with the next delivered batch, or the next epoch; reading changes
nothing in progress.
Relies on: `DataLoader`, which has the arguments and attributes that this mixin reads.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from feedline.errors import UsageError
from feedline.loader.checks import check_size
from feedline.loader.explain import explain
from feedline.loader.live_controls import LiveControls
from feedline.loader.planning import create_order
from feedline.loader.rank_agreement import RankAgreement
from feedline.loader.session import Session
from feedline.loader.settings import Asked, Settings, settings_of
from feedline.order.batch_spec import BatchSpec
from feedline.order.planned_order import Order
from feedline.order.schedule import Phase, is_count
from feedline.report.print_why import print_why
from feedline.sampling.samplers import share_of
from feedline.trace.recorder import Recorder
from feedline.trace.run import Run
from feedline.trace.split import Timing

__all__ = ["Controls"]


class Controls(LiveControls):
    """Position, workers and lifetime of a loader."""

    batch_sampler: Any
    _index_sampler: Any
    _asked: Asked
    _arguments: dict[str, Any]
    _planned_batches: object
    _session: Session
    _agreement: RankAgreement
    _finalizer: weakref.finalize[Any, Any]

    def _settings(self) -> Settings:
        """Settings from the current attributes."""
        return settings_of(self, self._asked, self._create_order())

    def _create_order(self) -> Order | None:
        """Order for the current length of the dataset and the current ranks."""
        if self._planned_batches is None or self.batch_sampler is not self._planned_batches:
            return None  # a framework has put another batch sampler in its place
        return create_order(self._asked, self._arguments)

    @property
    def order(self) -> Order | None:
        """Order planned by feedline; None if samplers or the dataset define it."""
        return self._session.settings.order

    def __len__(self) -> int:
        """Number of batches in the current epoch."""
        return self.steps_in(self.epoch)

    @property
    def epoch(self) -> int:
        """Current epoch, or the epoch of the next iteration. Counted from 0."""
        return self._session.position.current.epoch

    @property
    def epochs(self) -> int | None:
        """Number of epochs of the schedule; None without one."""
        return None if self._asked.schedule is None else self._asked.schedule.epochs

    @property
    def total_steps(self) -> int:
        """Number of batches of the whole schedule."""
        order = self._current_order()
        return order.total_steps if order else len(self) * (self.epochs or 1)

    def steps_in(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        order = self._current_order()
        return order.steps(epoch) if order else self._session.position.steps(epoch)

    def _current_order(self) -> Order | None:
        """Order of the current epoch, or of the next one."""
        return self.order if self._session.given else self._create_order()

    @property
    def batch(self) -> BatchSpec | None:
        """Specification of the last delivered batch: sample indices, image size, padding."""
        return self._session.batch

    @property
    def phase(self) -> Phase:
        """Phase of the last delivered batch; before the first batch, of the next one."""
        return self.batch.phase if self.batch else self._session.position.phase

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, or of the current one before its first batch."""
        self._session.ensure_usable()
        if not is_count(epoch):
            raise UsageError(f"epoch must be a whole number of at least 0, got {epoch!r}")
        self._session.move(lambda position: position.set_epoch(epoch))

    def set_step(self, step: int) -> None:
        """Skip the first `step` batches of the next iteration's epoch, without making them.

        If the epoch has fewer, no batch of it is left. A current iteration continues independently;
        the next one is of the following epoch.

        Args:
            step: number of batches to skip.

        Raises:
            UsageError: a loaded state is at a later step, or the dataset is an IterableDataset.
        """
        self._session.ensure_usable()
        if not is_count(step):
            raise UsageError(f"step must be a whole number of at least 0, got {step!r}")
        self._adopt_before_epoch()
        self._session.move(lambda position: position.set_step(step))

    def set_image_size(self, image_size: int | None) -> None:
        """Set the image size of all following batches.

        Args:
            image_size: side of the images in pixels; None returns to the schedule.

        Raises:
            UsageError: larger than `max_image_size`, or the dataset's images have a fixed size.
        """
        self._session.ensure_usable()
        if image_size is not None:
            check_size("image_size", image_size)
        self._session.set_image_size(image_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a state: small and JSON-able; with a seed or a schedule, the same
        on every rank.
        """
        self._adopt_before_epoch()
        return self._session.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with exactly the batches not yet delivered in a state.

        If it fails, nothing has changed. If the state's pixels were made in another way, a warning
        says how.

        Args:
            state: return value of `state_dict`.

        Raises:
            StateError: the state belongs to another dataset, seed, order, sampler or schedule.
            UsageError: the state's image size is larger than `max_image_size`.
        """
        self._session.ensure_usable()
        self._adopt_before_epoch()
        self._session.load(state)
        self._agreement.forget()

    def _adopt_before_epoch(self) -> None:
        """Update the ranks and the dataset's length, unless an epoch is in progress.

        Lightning, for one, initialises torch.distributed in `fit`, after the loader was built.
        """
        if not self._session.given:
            self._session.adopt(self._settings())

    def refresh(self) -> None:
        """Re-read the dataset and start new workers when the next iteration begins.

        Call it after changes that `iter()` does not detect while workers are kept: the contents of
        arrays and of lists with more than 1000 entries, and changes deeper inside the dataset than
        the attributes of its datasets, transforms and other objects.
        """
        self._session.ensure_usable()
        self._session.refresh()

    # Workers

    @property
    def ranks(self) -> int:
        """Number of processes that share the samples."""
        order = self._current_order()
        return order.world_size if order else share_of(self._index_sampler)[1]

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return list(self._session.backend.pids.values())

    @property
    def worker_deaths(self) -> list[str]:
        """Causes of death of replaced workers."""
        return self._session.deaths

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Samples skipped so far: name and reason."""
        return self._session.skipped

    @property
    def timing(self) -> Timing:
        """Times of the steps."""
        return self._session.timing

    @property
    def run(self) -> Run:
        """Record of this loader's steps; see `feedline.trace.run`."""
        return self.recorder.run()

    def why(self) -> None:
        """Print the bottleneck of this loader's training, and the fix.

        HTML in a notebook, coloured in a terminal, plain text otherwise.
        """
        print_why(self.run)

    @property
    def recorder(self) -> Recorder:
        """Recorder of the run."""
        return self._session.recording.recorder

    def explain(self, *, measure: bool = False) -> str:
        """Describe how the current dataset will be loaded, one fact per line.

        With a schedule and a training that ran for a while, or with `measure=True`, it includes an
        estimate of what each phase needs.

        Args:
            measure: also predict images/s for each size of the schedule, if feedline makes the rows
                itself: makes up to 100 rows of each size in this process, spread over the dataset,
                in about a second. For a cache it also tells whether memory holds what the phases
                read. Changes neither random states nor a current iteration.

        Example:
            >>> print(loader.explain(measure=True))                               # doctest: +SKIP
        """
        decision = self._session.decision()
        settings = self._settings()
        return explain(settings, decision, self.memory_bytes, self.run, measure=measure)

    @property
    def memory_bytes(self) -> int:
        """Memory allocated for batches: for rows the final amount, otherwise the amount used so
        far.
        """
        return self._session.backend.memory_bytes

    # Life

    def close(self) -> None:
        """End the workers. Delivered batches stay valid. May be called twice."""
        self._finalizer()
