"""Record of a loader's runs: always on, in fixed memory, some microseconds per step.

Guarantees: batches and their order do not change; if recording fails, the error is logged, and
training continues without recording. Once 64 steps have taken less than 1 ms, two of 64 are timed
and the others are only counted, also in later epochs.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from torch.utils.data import default_collate, default_convert

from feedline.loader.batch_stream import BatchStream
from feedline.loader.engine_choice import EngineChoice, keeps_workers
from feedline.loader.engines import QUICK_NS, QUICK_STEPS
from feedline.loader.options import Options
from feedline.system import find_attribute
from feedline.timing import is_recording_enabled
from feedline.timing.passes import PassRecord
from feedline.timing.recorder import Recorder, WorkerObserver
from feedline.timing.run import Loader
from feedline.timing.steps import StepTimer

_SKIPPED_BATCHES = 62


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
        self._pass: PassRecord | None = None
        self._described: Loader | None = None
        self._workers = WorkerObserver()
        self._number = 0
        self._engine: Any = None
        self._quick = 0

    def begin(self, began_ns: int) -> None:
        """Start a pass that began at `began_ns`, on the monotonic clock."""
        self.end("left")  # the previous pass, if its end was not reported
        if not self._on:
            return
        if os.getpid() != self._owner:
            self._reset()  # a forked process records a separate run
        stream = self._stream
        try:
            self._describe()
        except Exception as error:
            self._on, self._pass = False, None
            self.recorder.note_failure("the recording of the run stopped", error)
            return
        same, self._engine = self._engine is stream.engine, stream.engine
        on_device = stream.engine.times_steps
        self._pass = self.recorder.begin(
            self._number,
            stream.position.current.epoch,
            began_ns,
            device_clock=on_device,
            before=self._pass if same else None,
        )
        self._may_skip = not on_device
        stream.record.timing.listener = self._pass.add_step if on_device else None

    def _describe(self) -> None:
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

    def note_batch(self, batch: Any, timer: StepTimer, requested_cpu_ns: int) -> None:
        """Record a delivered batch, timed by this timer; `requested_cpu_ns` in thread time."""
        steps = self._pass
        if steps is None:
            return
        steps.note_batch(
            batch,
            self._batch_samples(),
            timer.requested_ns,
            timer.delivered_ns,
            requested_cpu_ns,
            timer.ready_ns,
        )
        if timer.step_ns > QUICK_NS:
            self._quick = max(0, self._quick - QUICK_STEPS // 4)
        elif self._may_skip:
            self._quick += 1
            if self._quick >= QUICK_STEPS and not steps.over:
                # After the skipped batches, one batch begins a timed step and the next ends it.
                self._quick = QUICK_STEPS - 2
                self.unrecorded_batches = _SKIPPED_BATCHES
                steps.count_unreported(_SKIPPED_BATCHES)

    def _batch_samples(self) -> int | None:
        """Number of samples of the batch from `next`, whose tensors may have other lengths, such as
        boxes or several views of an image. None if the dataset or its keys make whole batches.
        """
        batch = self._stream.batch
        if batch is None or not self._stream.options.batched:
            return None
        return batch.rows if isinstance(batch.keys, (list, tuple, type(None))) else None

    def note_exception(self) -> None:
        """Record an exception raised instead of a batch."""
        if self._pass is not None:
            self._pass.batch_failed()

    def end(self, how: str) -> None:
        """End the pass; see `Pass.ended`."""
        steps, unrecorded, self.unrecorded_batches = self._pass, self.unrecorded_batches, 0
        if steps is None or steps.over or os.getpid() != self._owner:
            return
        if unrecorded:
            steps.count_unreported(-unrecorded)
        steps.end(how)
        self._workers.remember_names()

    def leave_run(self) -> None:
        """End recording. The recorder, which other loaders may use, keeps nothing of the loader."""
        self.end("left")
        if self._described is not None and os.getpid() == self._owner:
            self.recorder.unregister_loader(self._number, self._workers)
        # No cycle is left, so the dataset is freed with its loader.
        self._workers = WorkerObserver()
        self._stream.record.timing.listener = None

    def _name(self, sample: int) -> str | None:
        name_of = getattr(self._stream.current_choice().source, "name", None)
        return str(name_of(sample)) if name_of else None


def describe_feedline_loader(
    options: Options, choice: EngineChoice, class_name: str = "feedline.DataLoader"
) -> Loader:
    """Description of a loader for a run."""
    dataset = options.dataset
    return Loader(
        kind="feedline",
        name=class_name,
        dataset=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        samples=dataset_length(dataset),
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


def dataset_length(dataset: Any) -> int | None:
    """Number of samples; None if unknown."""
    try:
        return len(dataset)
    except Exception:  # an IterableDataset may have no length, or raise anything
        return None
