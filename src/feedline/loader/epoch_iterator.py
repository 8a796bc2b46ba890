"""Iterations of a loader: EpochIterator is one epoch, LoaderRuntime starts and replaces iterations,
and changes settings while they run.

Guarantees: a changed setting takes effect at once, for batches that are not started; batches, their
order and the state stay the same. If a value is invalid, or would have no effect, an error gives
the reason, and nothing has changed. A copy of the loader is built with the user's settings. An
error in one `next` does not end the iteration. Nor does Ctrl-C, after which the next
call returns the same batch. When a second iteration begins, the first one continues independently,
with its own position and workers. Iterations may run, and begin, in several threads.
Relies on: settings are changed in no other thread than that of the newest iteration.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.autograd.profiler import record_function
from torch.utils.data import IterableDataset

from feedline.engine.defaults import worker_count
from feedline.errors import ClosedError, FeedlineError, UsageError
from feedline.loader.adaptation import Adaptation
from feedline.loader.batch_stream import BatchStream, create_position
from feedline.loader.dataset_kind import check_samples
from feedline.loader.engines import NO_ENGINE
from feedline.loader.options import (
    Arguments,
    Options,
    check_argument,
    check_no_prefetch_factor,
    create_order,
    factor_or_default,
    task_ns_of,
)
from feedline.loader.position import LoaderPosition
from feedline.loader.ranks import RankAgreement
from feedline.loader.recording import Recording
from feedline.loader.torch_samplers import PlannedSampler
from feedline.order.sample_order import Order
from feedline.private_names import find_private
from feedline.throughput.controller import What

LIVE_ATTRIBUTES = ("num_workers", "prefetch", "prefetch_factor", "task_ms")
"""Attributes of a loader that can be set while it runs."""

_BaseDataLoaderIter: Any = find_private("torch.utils.data.dataloader._BaseDataLoaderIter")
_profiler_enabled: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: False)

_STARTED_WITHIN_S = 10.0
_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncompiled(function: _Function) -> _Function:
    """Decorator: exclude a function, and all it calls, from `torch.compile`, as torch's loader is.

    It sets dynamo's mark of `torch.compiler.disable`, which breaks the graph at a call, and the
    action that dynamo keeps with a function's code, which also applies to all functions called from
    there. That needs no import of dynamo, which takes seconds, and calls take no more time.
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "feedline's workers make batches outside of the graph"
    with contextlib.suppress(UsageError):  # an older torch
        dynamo = find_private("torch._C._dynamo.eval_frame")
        skip = find_private("torch._C._dynamo.eval_frame._FrameAction").SKIP
        strategy = find_private("torch._C._dynamo.eval_frame._FrameExecStrategy")(skip, skip)
        dynamo.set_code_exec_strategy(function.__code__, strategy)
    return function


class LoaderRuntime:
    """Streams and settings of a running loader, which is referenced weakly."""

    def __init__(
        self, loader: Any, arguments: Arguments, options: Options, order: Order | None
    ) -> None:
        self.arguments = arguments  # arguments that a copy of the loader is built with
        self._loader_ref = weakref.ref(loader)
        self._planned_batches = loader.batch_sampler if order else None
        options = options.current(loader, order)
        self.stream = BatchStream(options, create_position(options, loader))
        self.recording = Recording(self.stream)
        self.adaptation: Adaptation | None = None
        self._agreement = RankAgreement()
        self._newest: weakref.ref[EpochIterator] | None = None
        """Iterator of the newest iteration, unless the iteration has ended."""
        self._earlier: weakref.WeakSet[BatchStream] = weakref.WeakSet()

    @property
    def loader(self) -> Any:
        """The loader, which is referenced weakly."""
        loader = self._loader_ref()
        assert loader is not None, "an iterator keeps its loader alive"
        return loader

    # Order

    def current_options(self) -> Options:
        """Options from the loader's current attributes."""
        return self.stream.options.current(self.loader, self.create_order())

    def create_order(self) -> Order | None:
        """Order for the current length of the dataset and the current ranks."""
        planned = self._planned_batches
        if planned is None or self.loader.batch_sampler is not planned:
            return None  # a framework has replaced the batch sampler
        return create_order(self.stream.options)

    @property
    def current_order(self) -> Order | None:
        """Order of the current epoch, or of the next one."""
        stream = self.stream
        return stream.options.order if stream.has_delivered else self.create_order()

    # Iterations

    def begin_pass(self, iterator: EpochIterator) -> None:
        """Begin an epoch with the loader's current attributes."""
        with self.stream.lock:
            self.stream.await_delivery()
            self.stream.ensure_usable()
            stream, loader = self.stream, self.loader
            if not (stream.options.is_row_source or stream.options.iterable):
                check_samples(loader.dataset, sampled=stream.options.sampled)
            options = self.current_options()
            if options.order is not None:
                self._agreement.check(options.order, stream.position.current, options.dataset)
                stream.filling.agree(self._agreement, options.order)
            elif not (options.iterable or loader.in_a_wrapper):
                self._agreement.warn_of_draws(options.index_sampler)
            self._begin(iterator, options)
            if isinstance(loader.sampler, PlannedSampler) and options.order is not None:
                loader.sampler.update_from_order(options.order, options.dataset)

    def _begin(self, iterator: EpochIterator, options: Options) -> None:
        """Begin an iteration. From now on the previous one continues independently."""
        began_ns = time.monotonic_ns()
        self._detach(self.stream.position.fork())
        self.stream.update_options(options)
        self.stream.begin()
        timing = self.stream.record.timing
        timing.pause()
        timing.on_device = self.stream.engine.times_steps
        self.recording.begin(began_ns)
        if self.adaptation is not None:
            self.adaptation.apply_pending_change()
        self._newest = weakref.ref(iterator)
        # The workers end with their iterator, as in torch.
        end = weakref.finalize(iterator, self._abandon, self._newest, os.getpid())
        end.atexit = False

    def _detach(self, position: LoaderPosition | None) -> None:
        """Let the newest iteration, if any, continue independently at a fork of the position."""
        iterator, self._newest = self._unfinished(), None
        if iterator is not None and position is not None:
            iterator.stream = stream = self.stream.split_off(position)
            self._earlier.add(stream)
            end = weakref.finalize(iterator, stream.close)
            end.atexit = False

    def _unfinished(self) -> EpochIterator | None:
        """Iterator of the newest iteration; None if it has ended or belongs to another process."""
        newest = None if self._newest is None else self._newest()
        return None if newest is None or newest.has_ended or newest.is_inherited else newest

    def next(self, iterator: EpochIterator) -> Any:
        """Return the next batch of the newest iteration; raises like an engine's `next`."""
        if self._newest is None or self._newest() is not iterator:
            self._begin(iterator, self.stream.options)  # replaced before its first batch
        if self.adaptation is not None:
            self.adaptation.apply_pending_change()
        return self.stream.next()

    def finish(self) -> None:
        """End the newest iteration after the epoch's last batch."""
        self._newest = None
        self.recording.end("exhausted")

    def _abandon(self, iterator: weakref.ref[EpochIterator], process: int) -> None:
        """Clean up after a garbage-collected iterator. Its workers end, unless they are kept."""
        if self._newest is iterator and process == os.getpid():
            self._newest = None
            self.recording.end("left")
            if self.stream.keeps_workers:
                self.stream.close_files()
            else:
                self.stream.end_workers()

    def end_workers(self, iterator: EpochIterator) -> list[Any]:
        """End the workers of an iterator, unless a later one uses them. Return their handles."""
        if iterator.stream is not self.stream:
            return iterator.stream.end_workers()
        newest = self._unfinished()
        if newest not in (None, iterator):
            return []
        if newest is iterator:
            self.recording.end("left")
        self._newest = None
        return self.stream.end_workers()

    @property
    def _keeps_workers(self) -> bool:
        """True if workers are persistent and not torch's own, as for an IterableDataset."""
        return self.loader.persistent_workers and not self.stream.options.iterable

    def persistent_iterator(self) -> EpochIterator | None:
        """Iterator of running persistent workers, maybe at its end, or None."""
        if not (self._keeps_workers and self.loader.num_workers):
            return None
        iterator, stream = self._unfinished(), self.stream
        if iterator is None:
            if stream.batch is None or stream.engine is NO_ENGINE:
                return None
            iterator = EpochIterator(self.loader, self)
            iterator.has_ended = True
        return iterator

    def end_idle_workers(self) -> None:
        """End persistent workers, unless an iteration is in progress."""
        if self._keeps_workers and not self._unfinished():
            self.stream.end_workers()

    # Position

    def update_options_before_epoch(self) -> None:
        """Update the ranks and the dataset's length, unless an epoch is in progress."""
        # E.g. Lightning initialises torch.distributed in `fit`, after the loader was built.
        if not self.stream.has_delivered:
            self.stream.update_options(self.current_options())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, or of the current one before its first batch."""
        self.stream.ensure_usable()
        check_argument("epoch", epoch)
        self._move(lambda position: position.set_epoch(epoch))

    def set_step(self, step: int) -> None:
        """Skip the first `step` batches of the next iteration's epoch."""
        self.stream.ensure_usable()
        check_argument("step", step)
        self.update_options_before_epoch()
        self._move(lambda position: position.set_step(step))

    def _move(self, move: Callable[[LoaderPosition], bool]) -> None:
        """Move the position, unless `move` returns False. An iteration that has delivered a batch
        continues independently.
        """
        stream = self.stream
        fork = stream.position.fork() if stream.has_delivered else None
        if move(stream.position):
            if fork is not None:
                self._detach(fork)
            stream.engine.restart_prefetch()

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a state."""
        self.update_options_before_epoch()
        return self.stream.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the batches not yet delivered in a state."""
        self.stream.ensure_usable()
        self.update_options_before_epoch()
        self.stream.load(state)
        self._agreement.forget()

    # Settings

    def change_attribute(self, name: str, value: Any) -> Any:
        """Apply the value of a live attribute, or raise UsageError. Return the value to store."""
        self.stream.ensure_usable()
        if name == "num_workers":
            return self._change_workers(value)
        check_argument(name, value)
        if name == "prefetch_factor":
            self._change_prefetch_factor(value)
        elif not (choice := self.stream.choice()).makes_rows:
            instead = "A whole batch is one task of one worker"
            if name == "prefetch":
                instead = "Set prefetch_factor instead"
            raise UsageError(
                f"{value!r} has no effect on this loader, which uses the {choice}. {instead}",
                argument=name,
            )
        elif name == "task_ms":
            self._apply_setting("task_ms", value)
        else:
            allocated = self.stream.options.allocated_prefetch
            if value is not None and value > allocated:
                raise UsageError(
                    f"{value} is larger than {allocated}, for which memory was allocated when the "
                    f"loader was built; build it with prefetch={value}, then any smaller number "
                    "can be set later",
                    argument="prefetch",
                )
            value = None if value is None else int(value)  # converts numpy integers
            self._apply(prefetch=None if value == allocated else value)
        self.arguments = replace(self.arguments, **{name: value})
        return value

    def _change_workers(self, workers: int | str) -> int:
        count, before = worker_count(workers), self.loader.num_workers
        if count and self.stream.engine.workers and count != before:
            self._apply_setting("workers", count)
        else:  # the next iteration starts the workers, or ends them
            object.__setattr__(self.loader, "num_workers", count)
        self.set_adapting(isinstance(workers, str))
        return count

    def _change_prefetch_factor(self, factor: int | None) -> None:
        stream = self.stream
        if stream.options.is_row_source:
            check_no_prefetch_factor(factor)
        if factor is not None and self.loader.num_workers == 0:
            raise UsageError(
                f"{factor} has no effect without workers, because batches are made on request. "
                "Build the loader with num_workers",
                argument="prefetch_factor",
            )
        if not stream.options.iterable:
            stream.engine.apply(prefetch_factor=factor_or_default(factor), min_prefetched_batches=0)
        stream.options = replace(stream.options, min_prefetched_batches=0)

    def _apply(self, **changes: Any) -> None:
        """Apply options, now and for later engines."""
        self.stream.engine.apply(**changes)
        self.stream.options = replace(self.stream.options, **changes)

    def _apply_setting(self, setting: What, value: float | None) -> None:
        """Apply a setting without storing it in the arguments, from which copies are built."""
        stream, number = self.stream, int(value or 0)
        if setting == "task_ms":
            self._apply(task_ns=task_ns_of(value))
            object.__setattr__(self.loader, "task_ms", value)
        elif setting == "prefetch":
            self._apply(min_prefetched_batches=number)
        else:
            stream.engine.apply(workers=number)
            object.__setattr__(self.loader, "num_workers", number)

    def set_adapting(self, adapts: bool) -> None:
        """Start or stop the adaptation of workers, batches ahead and task size."""
        iterable, workers = self.stream.options.iterable, self.loader.num_workers
        if adapts and (workers == 0 or iterable):
            why = "an IterableDataset is divided by it" if iterable else "there are no workers"
            raise UsageError(f"the number of workers cannot change in a running loader: {why}")
        if adapts and self.adaptation is None:
            self.adaptation = Adaptation(self.stream, self._apply_setting)
        if self.adaptation is not None:
            self.adaptation.off = not adapts
        # A copy of the loader is built with these arguments.
        self.arguments = replace(self.arguments, num_workers="auto" if adapts else workers)

    def close(self) -> None:
        """End all workers and free all memory; not in a forked child of their process."""
        iterator = self._unfinished()
        with contextlib.ExitStack() as closing:  # closes all, even if one raises
            for stream in list(self._earlier):
                closing.callback(stream.close)
            handles = self.stream.close()
            if iterator is not None:
                iterator.ended_workers = handles


class EpochIterator(_BaseDataLoaderIter):  # type: ignore[misc]
    """Iterator over the batches of one epoch. It keeps its loader alive.

    A batch counts as delivered as the last action of `next`: if Ctrl-C comes before that, the next
    call returns the same batch. The class derives from torch's iterator, because frameworks check
    for that class, but inherits no code. It has torch's private attributes that public code uses.
    """

    def __init__(self, loader: Any, runtime: LoaderRuntime) -> None:
        self._loader = loader
        self._runtime = runtime
        self._process = os.getpid()
        self._dataset, self._num_workers = loader.dataset, loader.num_workers
        self._index_sampler = loader._index_sampler
        self._profile_name = _profile_name(loader)
        self._start_pass()

    def _start_pass(self) -> None:
        self.stream = self._runtime.stream
        """Stream that makes the batches. If a later iteration begins, a fork replaces it."""
        self.has_ended = False
        self.ended_workers: list[Any] = []  # handles of workers that ended with the iteration
        self._shutdown = False
        self._num_yielded = 0

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the iterator's process."""
        return self._process != os.getpid()

    @uncompiled
    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    @uncompiled
    def __next__(self) -> Any:
        # Entering record_function takes 9 us, with or without a profiler; this check 0.05 us.
        if _profiler_enabled() and self._profile_name:
            with record_function(self._profile_name):
                batch = self._fetch()
        else:
            batch = self._fetch()
        self.stream.record_delivery()
        return batch

    def _next_data(self) -> Any:
        """Return the next batch, without an entry for profilers."""
        batch = self._fetch()
        self.stream.record_delivery()
        return batch

    def _fetch(self) -> Any:
        """Return the next batch. The position is advanced later, by `record_delivery`."""
        stream = self.stream
        with stream.lock:
            if stream is not self.stream:  # another thread has begun the next iteration
                return self._fetch()
            if self.has_ended:
                raise StopIteration
            if self._shutdown:
                raise ClosedError(
                    "the workers of this iterator were ended by its _shutdown_workers(); create "
                    "another one with iter(loader)"
                )
            if self.is_inherited:
                raise UsageError(
                    "this iterator belongs to another process; create one here with iter(loader)"
                )
            runtime = self._runtime
            recording, timing = runtime.recording, stream.record.timing
            is_newest = stream is runtime.stream
            stream.ensure_usable()
            is_recorded = is_newest and recording.unrecorded_batches <= 0
            requested_cpu_ns = time.thread_time_ns() if is_recorded else 0
            timing.request()
            try:
                batch = runtime.next(self) if is_newest else stream.next()
            except StopIteration:
                self.has_ended = True  # set first: even if Ctrl-C follows, the epoch stays ended
                self.ended_workers = stream.finish()
                if is_newest:
                    runtime.finish()
                else:
                    stream.close()
                raise
            except BaseException as error:
                recording.note_exception()
                if isinstance(error, Exception):
                    stream.raise_if_closed(error)
                raise
            timing.deliver()
            if is_newest and runtime.adaptation is not None:
                runtime.adaptation.note_step(timing)
            if is_recorded:
                recording.note_batch(batch, timing, requested_cpu_ns)
            elif is_newest and recording.unrecorded_batches > 0:  # 0 if another one has started
                recording.unrecorded_batches -= 1
            self._num_yielded += 1
            stream.delivering = threading.get_ident()
            return batch

    def at_end(self) -> bool:
        """Return True if no batches are left. False for an IterableDataset."""
        return self.stream.position.is_at_end()

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iterator cannot be pickled; pickle the loader")

    @property
    def _workers(self) -> list[Any]:
        """Workers, or handles of those that ended with the epoch, as in torch's iterators."""
        deadline = time.monotonic() + _STARTED_WITHIN_S
        engine = self.stream.engine
        with contextlib.suppress(FeedlineError):  # the next `next` raises it
            while len(engine.pids) < engine.workers and time.monotonic() < deadline:
                self.stream.ensure_usable()
                time.sleep(0.001)
                engine.poll()
        return self.ended_workers or engine.handles

    def _shutdown_workers(self) -> None:
        """End the workers of this iterator. The next `iter(loader)` starts new ones."""
        if not self._shutdown and self._num_workers and not self.is_inherited:
            self._shutdown = True
            handles = self._runtime.end_workers(self)
            self.ended_workers = self.ended_workers or handles

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin another epoch of the loader with this iterator."""
        if self.stream is not self._runtime.stream:
            self.stream.close()
        self.has_ended = True
        self._runtime.begin_pass(self)
        self._start_pass()


def _profile_name(loader: Any) -> str:
    """Name of the profiler entry, as in torch; "" if torch's own iterator makes that entry."""
    if isinstance(loader.dataset, IterableDataset):
        return ""
    kind = "MultiProcessing" if loader.num_workers else "SingleProcess"
    return f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
