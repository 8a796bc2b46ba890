"""`feedline.watch(iterable)`: the same batches, with a recording of data wait and compute time.

Guarantees: batches and exceptions are those of the iterable; after an exception the loop may
request further batches. A pass ends when its iterator is exhausted or freed. A loop that breaks,
an empty loader and one that raises leave a record of it. Recording costs a few microseconds per
step, and its failure does not stop the loop. A forked process has a run of its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Literal, TypeVar

from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.profile import print_why
from feedline.profile.live import MetricsCallback
from feedline.profile.loader_probe import LoaderProbe, get_probe
from feedline.profile.save import RunOutputs
from feedline.system import rank_and_world
from feedline.timing import is_recording_enabled
from feedline.timing.recorder import Recorder
from feedline.timing.run import Run
from feedline.timing.run_file import read_run, run_file
from feedline.timing.steps import DeviceClock

_T = TypeVar("_T")

_recorders: dict[tuple[int, str], Recorder] = {}


def watch(
    iterable: Iterable[_T],
    *,
    run: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    metrics: MetricsCallback | None = None,
    every_s: float = 10.0,
    panel: bool | Literal["auto"] = "auto",
    name: str = "train",
) -> WatchedLoader[_T]:
    """Record the data wait, compute time and bottleneck of a loop over batches.

    Loops with the same name belong to one run: if a loader is created again for each epoch or image
    size, watch it again. A feedline.DataLoader records its own run, which is used then.

    Args:
        iterable: any iterable of batches: torch's DataLoader, DALI's, WebDataset's, a
            feedline.DataLoader.
        run: folder of the run, written at the end of a pass and every 30 s: rank 0 writes
            trace.json, rank 1 trace-rank1.json. Default: not written.
        trace: file for the timeline of the latest 100,000 events, for ui.perfetto.dev; compressed
            if its name ends in .gz. Other ranks than 0 add their rank to the name.
        metrics: called with the run's metrics, a dict of floats by names with units, such as
            "feedline/wait_ms_p95". See `feedline.profile.live.tensorboard_writer`.
        every_s: interval of these calls, in seconds.
        panel: line on stderr with the current rates: True, False or "auto" (if stderr is a
            terminal). If stderr is not a terminal, True prints a line every 30 s. Only in rank 0.
            Pass False if the loop draws a progress bar of its own.
        name: name of the run; use different names for training and validation loops.

    Returns:
        The iterable to loop over, which can be iterated as often as the original.

    Raises:
        UsageError: the object is not iterable, or a file cannot be written.

    Example:
        >>> for images, labels in feedline.watch(loader, run="runs/today"):      # doctest: +SKIP
        ...     step(images, labels)
    """
    if isinstance(iterable, WatchedLoader):
        iterable = iterable.iterable
    if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
        raise UsageError(
            f"feedline.watch expects an iterable of batches, got {type(iterable).__name__}",
            hint="pass the loader",
        )
    if panel not in (True, False, "auto"):
        raise UsageError(f'must be True, False or "auto", got {panel!r}', argument="panel")
    if metrics is not None and not callable(metrics):
        raise UsageError(
            f"must be a function of a dict, got {type(metrics).__name__}", argument="metrics"
        )
    if not every_s > 0:
        raise UsageError(f"must be more than 0 seconds, got {every_s!r}", argument="every_s")
    outputs = RunOutputs(
        folder=run,
        trace=trace,
        metrics=metrics,
        every_s=every_s,
        name=name,
        panel=panel,
    )
    return WatchedLoader(iterable, outputs, name)


def forget(name: str = "train") -> None:
    """Start a new run with the next loop of this name."""
    _recorders.pop((os.getpid(), name), None)


class WatchedLoader(Generic[_T]):
    """A watched iterable of batches, returned by `watch`."""

    def __init__(self, iterable: Iterable[_T], outputs: RunOutputs, name: str) -> None:
        self.iterable = iterable
        self._name = name
        self._outputs = outputs
        self._clock: DeviceClock | None = None
        self._start_in_process()

    def _start_in_process(self) -> None:
        """Start recording in this process."""
        self._owner = os.getpid()
        if isinstance(self.iterable, DataLoader):
            self.recorder = self.iterable.recorder
            self._probe = None
        else:
            self.recorder = _recorders.setdefault((self._owner, self._name), Recorder())
            self._probe = (
                get_probe(self.iterable, self.recorder) if is_recording_enabled() else None
            )
        self._outputs.open(self.recorder)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self.iterable)  # a generator has no length

    def __getattr__(self, name: str) -> Any:
        """Forward other attributes, such as `set_epoch` or `dataset`, to the loader."""
        if name == "iterable" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.iterable, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set other attributes, such as `num_workers`, on the loader."""
        if name in _OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.iterable, name, value)

    @property
    def run(self) -> Run:
        """The run so far."""
        self._settle()
        return self.recorder.run()

    def why(self) -> None:
        """Print the diagnosis: bottleneck, cause and fix; see `DataLoader.why`."""
        print_why(self.run)

    def _settle(self) -> None:
        """Record the steps of the latest pass that the device has finished."""
        if self._clock is not None:
            with contextlib.suppress(Exception):  # the device may be gone
                self._clock.settle()

    def save(self) -> None:
        """Write the run's files now.

        Raises:
            UsageError: a file cannot be written.
        """
        self._outputs.save()

    def continue_run(self) -> None:
        """Add to the run of an earlier start in the folder, instead of replacing it.

        If that run cannot be read, the new one notes it.
        """
        outputs = self._outputs
        if outputs.folder is None:
            return
        rank, _ = rank_and_world()
        if (outputs.folder / run_file(rank)).exists():
            try:
                outputs.earlier = read_run(outputs.folder, rank)
            except UsageError as error:
                self.recorder.note(f"cannot read the run of earlier starts: {error}")

    def __iter__(self) -> Iterator[_T]:
        if os.getpid() != self._owner:
            self._start_in_process()
        outputs = self._outputs
        if isinstance(self.iterable, DataLoader):
            return WatchedPass(iter(self.iterable), outputs)
        if self._probe is None:
            return iter(self.iterable)
        self._settle()
        recorded = RecordedPass(self.recorder, self._probe, self.iterable, outputs)
        self._clock = recorded.clock  # not the pass itself: it must end when the loop frees it
        return recorded


_OWN = frozenset(
    {"iterable", "recorder", "_name", "_outputs", "_clock", "_owner", "_probe", "__orig_class__"}
)


class WatchedPass(Generic[_T]):
    """A pass over a loader that records itself; updates the outputs of its run, if it has any."""

    def __init__(self, iterator: Iterator[_T], outputs: RunOutputs | None) -> None:
        self._iterator, self._outputs = iterator, outputs
        self._over = False

    def __iter__(self) -> Iterator[_T]:
        return self

    def __getattr__(self, name: str) -> Any:
        """Forward other attributes to the iterator."""
        if name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> _T:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._end("exhausted")
            raise
        self._update()
        return batch

    def _update(self) -> None:
        if self._outputs is not None:
            self._outputs.note_batch()

    def _end(self, how: str) -> None:
        if not self._over:
            self._over = True
            self._record_end(how)
            if self._outputs is not None:
                self._outputs.end()

    def _record_end(self, how: str) -> None:
        """Record the end of the pass: the loader does so when its iterator is freed."""
        if how == "left":
            del self._iterator

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be about to end
            self._end("left")


class RecordedPass(WatchedPass[_T]):
    """A pass over an iterable of another library, whose steps are recorded here.

    Raises:
        Exception: any error of the iterable.
    """

    def __init__(
        self,
        recorder: Recorder,
        probe: LoaderProbe,
        iterable: Iterable[_T],
        outputs: RunOutputs | None,
        iterate: Callable[[Any], Iterator[Any]] = iter,
    ) -> None:
        self._over = True  # until the start has succeeded
        start_ns = time.monotonic_ns()
        with contextlib.ExitStack() as starting:
            iterator = probe.start(iterable, starting, iterate)
            self._starting, self._is_first = starting.pop_all(), True
        super().__init__(iterator, outputs)
        probe.running += 1
        self._probe = probe
        # The loop may have the only reference to this pass, and none to the loader, whose workers'
        # timings are read until the pass has ended.
        self._iterable = iterable
        self._steps = recorder.begin(probe.number, None, start_ns)
        self.clock = self._steps.clock

    def __next__(self) -> _T:
        requested_ns = self._steps.batch_requested()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._end("exhausted")
            raise
        except BaseException:
            self._steps.batch_failed()
            raise
        finally:
            if self._is_first:
                self._is_first = False
                self._starting.close()  # restores the user's loader
        self._steps.batch_received(batch, requested_ns)
        self._update()
        return batch

    def _record_end(self, how: str) -> None:
        # The iterator is kept: workers that end with it are read once more.
        self._probe.running -= 1
        self._starting.close()
        self._steps.end(how)
        self._probe.workers.remember_names()
