"""Record of a loader's runs: always on, in fixed memory, some microseconds per step.

Guarantees: batches and their order do not change; if recording fails, the error is logged, and
training continues without recording. Once 64 steps have taken less than 1 ms, two of 64 are timed
and the others are only counted, also in later epochs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from torch.utils.data import default_collate, default_convert

from feedline.loader.batch_stream import BatchStream
from feedline.loader.engine_choice import EngineChoice, keeps_workers
from feedline.loader.engines import QUICK_NS, QUICK_STEPS
from feedline.loader.options import Options
from feedline.system import find_attribute
from feedline.timing import is_recording_enabled
from feedline.timing.batch_probe import BatchProbe
from feedline.timing.recorder import Recorder, WorkerObserver, note_failure
from feedline.timing.run import Loader
from feedline.timing.steps import PassRecord, StepTimer

__all__ = ["Recording", "collate_name", "describe_feedline_loader"]

_SKIPPED_BATCHES = 62
_MAX_NAMES = 256


def _stop_recording_on_error(method: Callable[..., None]) -> Callable[..., None]:
    """Decorator: log an error of a method instead of raising it, and stop recording."""

    @wraps(method)
    def wrapper(self: Recording, *arguments: Any) -> None:
        try:
            method(self, *arguments)
        except Exception as error:
            self._fail(error)

    return wrapper


class Recording:
    """Connects a stream of batches with a recorder."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream
        self._on = is_recording_enabled()
        self.unrecorded_batches = 0  # number of following batches that are not recorded
        self.class_name = "feedline.DataLoader"
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self.recorder = Recorder()
        self._probe = BatchProbe()
        self._pass: PassRecord | None = None
        self._described: Loader | None = None
        self._workers = WorkerObserver()
        self._names: dict[int, str] = {}
        self._number = 0
        self._engine: Any = None
        self._quick = 0

    @_stop_recording_on_error
    def begin(self, began_ns: int) -> None:
        """Start a pass that began at `began_ns`, on the monotonic clock."""
        self.end("left")  # the previous pass, if its end was not reported
        if not self._on:
            return
        if os.getpid() != self._owner:
            self._reset()  # a forked process records a separate run
        stream, recorder = self._stream, self.recorder
        choice = stream.current_choice()
        loader = describe_feedline_loader(stream.options, choice, self.class_name)
        if self._described is None:
            self._workers = WorkerObserver(
                pids=lambda: list(stream.engine.pids.values()),
                stage_timings=stream.stage_timings,
                name=self._name,
                deaths=lambda: len(stream.record.deaths),
            )
            self._number = recorder.register_loader(loader, self._workers)
        elif loader != self._described:
            self._number = recorder.change_loader(self._number, loader, self._workers)
        self._described = loader
        same, self._engine = self._engine is stream.engine, stream.engine
        on_device = stream.engine.times_steps
        self._pass = recorder.begin(
            self._number,
            stream.position.current.epoch,
            began_ns,
            device_clock=on_device,
            before=self._pass if same else None,
        )
        self._may_skip = not on_device
        stream.record.timing.listener = self._add_device_step if on_device else None
        self.unrecorded_batches = 0

    @_stop_recording_on_error
    def note_batch(self, batch: Any, timer: StepTimer, requested_cpu_ns: int) -> None:
        """Record a delivered batch, timed by this timer; `requested_cpu_ns` in thread time."""
        record = self._pass
        if record is None or record.over:
            return
        record.add_batch(
            self._probe.inspect(batch),
            timer.requested_ns,
            timer.delivered_ns,
            requested_cpu_ns,
            timer.ready_ns,
        )
        if timer.step_ns > QUICK_NS:
            self._quick = max(0, self._quick - QUICK_STEPS // 4)
        elif self._may_skip:
            self._quick += 1
            if self._quick >= QUICK_STEPS:
                # After the skipped batches, one batch begins a timed step and the next ends it.
                self._quick = QUICK_STEPS - 2
                self.unrecorded_batches = _SKIPPED_BATCHES
                record.count_unreported(_SKIPPED_BATCHES)

    @_stop_recording_on_error
    def _add_device_step(self, wait_ms: float, copy_ms: float | None, compute_ms: float) -> None:
        if self._pass is not None:
            self._pass.add_step(wait_ms, copy_ms, compute_ms)

    @_stop_recording_on_error
    def note_exception(self) -> None:
        """Record an exception raised instead of a batch."""
        if self._pass is not None and not self._pass.over:
            self._pass.note_exception()

    @_stop_recording_on_error
    def end(self, how: str) -> None:
        """End the pass; see `Pass.ended`."""
        record = self._pass
        if record is None or record.over or os.getpid() != self._owner:
            return
        record.uncount_unreported(self.unrecorded_batches)
        self.unrecorded_batches = 0
        self.recorder.end(record, how)
        for timings in self._stream.stage_timings().values():  # while the dataset is as it was
            for _, sample in timings.slowest:
                self._name(sample)

    def leave_run(self) -> None:
        """End recording. The recorder, which other loaders may use, keeps nothing of the loader."""
        self.end("left")
        if self._described is not None and os.getpid() == self._owner:
            self.recorder.unregister_loader(self._number, self._workers)
        # No cycle is left, so the dataset is freed with its loader.
        self._workers = WorkerObserver()
        self._stream.record.timing.listener = None

    def _fail(self, error: Exception) -> None:
        """Stop recording."""
        record = self._pass
        self._on, self._pass, self.unrecorded_batches = False, None, 0
        self._stream.record.timing.listener = None
        if record is not None:
            with contextlib.suppress(Exception):
                self.recorder.end(record, "left")
        note_failure(self.recorder, "the recording of the run stopped", error)

    def _name(self, sample: int) -> str:
        if sample in self._names:
            return self._names[sample]
        try:
            name_of = getattr(self._stream.current_choice().source, "name", None)
            name = str(name_of(sample)) if name_of and sample >= 0 else f"sample {sample}"
        except Exception:  # the dataset has changed, and has no such sample
            return f"sample {sample}"
        if len(self._names) >= _MAX_NAMES:
            self._names.clear()
        self._names[sample] = name
        return name


def describe_feedline_loader(
    options: Options, choice: EngineChoice, class_name: str = "feedline.DataLoader"
) -> Loader:
    """Description of a loader for a run."""
    dataset = options.dataset
    return Loader(
        kind="feedline",
        name=class_name,
        dataset=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        samples=_length(dataset),
        workers=options.num_workers,
        prefetch_factor=options.prefetch_factor,
        persistent_workers=keeps_workers(options, choice),
        pin_memory=bool(options.pin_memory),
        batch_size=options.batch_size,
        start_method=options.start_method or "",
        collate=collate_name(options.collate_fn),
        made_by=choice.engine,
        fused=", ".join(choice.fused),
        copies=str(getattr(choice.source, "copies_from", "")),
        because=" ".join(choice.reasons),
        uncompiled=choice.uncompiled,
        accepts=choice.accepts,
    )


def collate_name(collate: Any) -> str:
    """Name of a collate function, or of its class; "" for torch's own."""
    if collate is None or collate is default_collate or collate is default_convert:
        return ""
    while isinstance(collate, partial):
        collate = collate.func
    return str(find_attribute(collate, "__qualname__") or type(collate).__qualname__)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # an IterableDataset may have no length, or raise anything
        return None
