"""Position, workers and lifetime of a loader, as a user reads and sets them while it works.

Guarantees: a setting takes effect at once, on batches that are not started; batches, their order
and the state stay the same. The position changes with the next delivered batch, or the next epoch.
If a value is invalid, or would have no effect, an error gives the reason, and nothing has changed.
Reading changes nothing in progress. A copy of the loader is built with the manual settings. Relies
on: `DataLoader`, which has the arguments and attributes that these mixins read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from feedline.control.decision import SettingChange, What
from feedline.errors import UsageError
from feedline.loader.adaptation import Adaptation
from feedline.loader.argument_checks import (
    check_no_factor,
    check_prefetch,
    check_prefetch_factor,
    check_size,
    task_ns_of,
    worker_count,
)
from feedline.loader.epoch_iterator import LoaderState
from feedline.loader.explain import explain
from feedline.loader.options import Asked, Settings, create_order, prefetch_factor_of, settings_of
from feedline.loader.ranks import RankAgreement
from feedline.loader.samplers import share_of
from feedline.order.batch_spec import BatchSpec
from feedline.order.planned_order import Order
from feedline.order.schedule import Phase, is_count
from feedline.report.print_why import print_why
from feedline.trace.recorder import Recorder
from feedline.trace.run import Run
from feedline.trace.split import Timing

__all__ = [
    "Controls",
    "LiveControls",
]


def _setter_of(loader: LiveControls) -> Callable[[What, float], None]:
    """Setter for a loader, which does not keep it alive."""
    method = weakref.WeakMethod(loader._set)

    def change(what: What, value: float) -> None:
        if (set_now := method()) is not None:
            set_now(what, value)

    return change


class LiveControls:
    """Workers, batches ahead and task size of a working loader."""

    _ahead: int
    _asked: Asked
    _arguments: dict[str, Any]
    _state: LoaderState

    @property
    def num_workers(self) -> int:
        """Number of worker processes.

        Can be set at any time, but not between 0 and more.
        """
        workers: int = self.__dict__["num_workers"]
        return workers

    @num_workers.setter
    def num_workers(self, workers: int | str) -> None:
        if not self._is_built("num_workers", workers):
            return
        wanted, had = worker_count(workers), self.num_workers
        if (wanted == 0) != (had == 0):
            raise UsageError(
                f"num_workers cannot change between {had} and {wanted} in a running loader; build "
                "a new one"
            )
        if wanted != had:
            self._set("workers", wanted)
        self.adapts = isinstance(workers, str)

    @property
    def prefetch(self) -> int | None:
        """Batches of rows made ahead; None for the number the loader was built with.

        Can be set at any time, up to the number the loader was built with, for which memory is
        allocated.

        Raises:
            UsageError: set to a larger number, or batches are not made of rows.
        """
        prefetch: int | None = self.__dict__["prefetch"]
        return prefetch

    @prefetch.setter
    def prefetch(self, prefetch: int | None) -> None:
        if not self._is_built("prefetch", prefetch):
            return
        check_prefetch(prefetch)
        self._need_rows(f"prefetch={prefetch!r}", "Set prefetch_factor instead")
        allocated = self._asked.prefetch
        if prefetch is not None and prefetch > allocated:
            raise UsageError(
                f"prefetch={prefetch} is larger than {allocated}, for which memory was allocated "
                f"when the loader was built; build it with prefetch={prefetch}, then any smaller "
                "number can be set later"
            )
        prefetch = None if prefetch is None else int(prefetch)  # of numpy's, too
        self._state.stream.engine.apply(prefetch=None if prefetch == allocated else prefetch)
        self.__dict__["prefetch"] = self._arguments["prefetch"] = prefetch

    @property
    def prefetch_factor(self) -> int | None:
        """Whole batches each worker makes ahead, as in torch; None for 2.

        Can be set at any time. If increased, more are started at once; if decreased, batches in
        flight are finished, and come first. With an IterableDataset it takes effect in the next
        iteration. Batches of rows use `prefetch`.

        Raises:
            UsageError: not a whole number from 1 to 1024, or without workers, or for feedline's own
                sources, whose workers share each batch.
        """
        factor: int | None = self.__dict__["prefetch_factor"]
        return factor

    @prefetch_factor.setter
    def prefetch_factor(self, factor: int | None) -> None:
        if not self._is_built("prefetch_factor", factor):
            return
        check_prefetch_factor(factor)
        if self._asked.native:
            check_no_factor(factor)
        if factor is not None and self.num_workers == 0:
            raise UsageError(
                f"prefetch_factor={factor} has no effect without workers, because batches are made "
                "on request. Build the loader with num_workers"
            )
        if not self._asked.iterable:
            self._state.stream.engine.apply(prefetch_factor=prefetch_factor_of(factor), ahead=0)
        self._ahead = 0
        self.__dict__["prefetch_factor"] = self._arguments["prefetch_factor"] = factor

    @property
    def task_ms(self) -> float | None:
        """Work per task of a batch of rows, in ms; None for 50.

        Can be set at any time, for batches started from then on.

        Raises:
            UsageError: not a number above 0, or batches are not made of rows.
        """
        task_ms: float | None = self.__dict__["task_ms"]
        return task_ms

    @task_ms.setter
    def task_ms(self, task_ms: float | None) -> None:
        if not self._is_built("task_ms", task_ms):
            return
        task_ns_of(task_ms)
        self._need_rows(f"task_ms={task_ms!r}", "A whole batch is one task of one worker")
        self._set("task_ms", task_ms)
        self._arguments["task_ms"] = task_ms

    def _set(self, what: What, value: float | None) -> None:
        """Set a value that adaptation may change, too; copies do not get it."""
        if what == "task_ms":
            self._state.stream.engine.apply(task_ns=task_ns_of(value))
            self.__dict__["task_ms"] = value
        elif what == "prefetch":
            ahead = int(value or 0)
            self._state.stream.engine.apply(ahead=ahead)
            self._ahead = ahead
        else:
            workers = int(value or 0)
            self._state.stream.engine.apply(workers=workers)
            self.__dict__["num_workers"] = workers

    def _is_built(self, name: str, value: object) -> bool:
        """True once the loader is built; before that, a value is only stored."""
        if "_state" not in self.__dict__:  # torch's own constructor, or ours
            self.__dict__[name] = value
            return False
        self._state.ensure_usable()
        return True

    def _need_rows(self, asked: str, instead: str) -> None:
        choice = self._state.stream.choice()
        if choice.rows is None:
            raise UsageError(
                f"{asked} has no effect on this loader, which uses the {choice}. {instead}"
            )

    @property
    def adapts(self) -> bool:
        """True if workers, batches ahead and task size adapt to the measured training.

        The default with `num_workers="auto"`. Set it to False to keep the current values, or to
        True to adapt any loader with workers; batches are the same in any case. The decisions and
        reasons are in `adaptations`, and logged by the logger "feedline" at level INFO.

        Raises:
            UsageError: set to True without workers, or for an IterableDataset, which is divided by
                their number.
        """
        adapting = self._state.adaptation
        return adapting is not None and not adapting.off

    @adapts.setter
    def adapts(self, adapts: bool) -> None:
        adapting = self._state.adaptation
        if adapts and (self.num_workers == 0 or self._asked.iterable):
            why = (
                "an IterableDataset is divided by it"
                if self._asked.iterable
                else "there are no workers"
            )
            raise UsageError(f"the number of workers cannot change in a running loader: {why}")
        if adapts and adapting is None:
            adapting = self._state.adaptation = Adaptation(self._state.stream, _setter_of(self))
        if adapting is not None:
            adapting.off = not adapts
        # A copy of the loader is built of these.
        self._arguments["num_workers"] = "auto" if adapts else self.num_workers

    @property
    def adaptations(self) -> list[SettingChange]:
        """Changes with their reasons, as `control.SettingChange`s, the latest 256."""
        adapting = self._state.adaptation
        return [] if adapting is None else list(adapting.decisions)


class Controls(LiveControls):
    """Position, workers and lifetime of a loader."""

    batch_sampler: Any
    _index_sampler: Any
    _asked: Asked
    _arguments: dict[str, Any]
    _planned_batches: object
    _state: LoaderState
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
        return self._state.stream.settings.order

    def __len__(self) -> int:
        """Number of batches in the current epoch."""
        return self.steps_in(self.epoch)

    @property
    def epoch(self) -> int:
        """Current epoch, or the epoch of the next iteration. Counted from 0."""
        return self._state.stream.position.current.epoch

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
        return order.steps(epoch) if order else self._state.stream.position.steps(epoch)

    def _current_order(self) -> Order | None:
        """Order of the current epoch, or of the next one."""
        return self.order if self._state.stream.has_delivered else self._create_order()

    @property
    def batch(self) -> BatchSpec | None:
        """Specification of the last delivered batch: sample indices, image size, padding."""
        return self._state.stream.batch

    @property
    def phase(self) -> Phase:
        """Phase of the last delivered batch; before the first batch, of the next one."""
        return self.batch.phase if self.batch else self._state.stream.position.phase

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, or of the current one before its first batch."""
        self._state.ensure_usable()
        if not is_count(epoch):
            raise UsageError(f"epoch must be a whole number of at least 0, got {epoch!r}")
        self._state.move(lambda position: position.set_epoch(epoch))

    def set_step(self, step: int) -> None:
        """Skip the first `step` batches of the next iteration's epoch, without making them.

        If the epoch has fewer, no batch of it is left. A current iteration continues independently;
        the next one is of the following epoch.

        Args:
            step: number of batches to skip.

        Raises:
            UsageError: a loaded state is at a later step, or the dataset is an IterableDataset.
        """
        self._state.ensure_usable()
        if not is_count(step):
            raise UsageError(f"step must be a whole number of at least 0, got {step!r}")
        self._adopt_before_epoch()
        self._state.move(lambda position: position.set_step(step))

    def set_image_size(self, image_size: int | None) -> None:
        """Set the image size of all following batches.

        Args:
            image_size: side of the images in pixels; None returns to the schedule.

        Raises:
            UsageError: larger than `max_image_size`, or the dataset's images have a fixed size.
        """
        self._state.ensure_usable()
        if image_size is not None:
            check_size("image_size", image_size)
        self._state.stream.set_image_size(image_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a state: small and JSON-able; with a seed or a schedule, the same
        on every rank.
        """
        self._adopt_before_epoch()
        return self._state.stream.state()

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
        self._state.ensure_usable()
        self._adopt_before_epoch()
        self._state.stream.load(state)
        self._agreement.forget()

    def _adopt_before_epoch(self) -> None:
        """Update the ranks and the dataset's length, unless an epoch is in progress.

        Lightning, for one, initialises torch.distributed in `fit`, after the loader was built.
        """
        if not self._state.stream.has_delivered:
            self._state.stream.adopt(self._settings())

    def refresh(self) -> None:
        """Re-read the dataset and start new workers when the next iteration begins.

        Call it after changes that `iter()` does not detect while workers are kept: the contents of
        arrays and of lists with more than 1000 entries, and changes deeper inside the dataset than
        the attributes of its datasets, transforms and other objects.
        """
        self._state.ensure_usable()
        self._state.stream.refresh()

    # Workers

    @property
    def ranks(self) -> int:
        """Number of processes that share the samples."""
        order = self._current_order()
        return order.world_size if order else share_of(self._index_sampler)[1]

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return list(self._state.stream.engine.pids.values())

    @property
    def worker_deaths(self) -> list[str]:
        """Causes of death of replaced workers."""
        return self._state.stream.deaths

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Samples skipped so far: name and reason."""
        return self._state.stream.skipped

    @property
    def timing(self) -> Timing:
        """Times of the steps."""
        return self._state.stream.timing

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
        return self._state.recording.recorder

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
        choice = self._state.stream.choice()
        settings = self._settings()
        return explain(settings, choice, self.memory_bytes, self.run, measure=measure)

    @property
    def memory_bytes(self) -> int:
        """Memory allocated for batches: for rows the final amount, otherwise the amount used so
        far.
        """
        return self._state.stream.engine.memory_bytes

    # Life

    def close(self) -> None:
        """End the workers. Delivered batches stay valid. May be called twice."""
        self._finalizer()
