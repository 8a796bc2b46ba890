"""Iteration of a loader: EpochIterator is one pass, LoaderState begins and replaces passes.

Guarantees: an error in one `next` does not end a pass, nor does Ctrl-C, which costs no batch. When
a second iteration begins, the first one continues independently, with its own position and workers.
Relies on: use from one thread.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.autograd.profiler import record_function
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from feedline.errors import ClosedError, FeedlineError, UsageError
from feedline.loader.batch_stream import BatchStream
from feedline.loader.dataset_kind import check_samples
from feedline.loader.live_settings import Adaptation
from feedline.loader.options import Arguments, Options, check_argument, create_order
from feedline.loader.position import LoaderPosition, create_position
from feedline.loader.ranks import RankAgreement
from feedline.loader.recording import Recording
from feedline.loader.samplers import PlannedSampler
from feedline.order.planned_order import Order
from feedline.order.schedule import is_count

__all__ = ["EpochIterator", "LoaderState"]

_STARTED_WITHIN_S = 10.0


class LoaderState:
    """Running state of one loader: the stream of its newest iteration, and earlier ones.

    Args:
        loader: the loader, referenced weakly.
        arguments: its arguments.
        options: the same, checked.
        order: its order, if made by feedline.
    """

    def __init__(
        self, loader: Any, arguments: Arguments, options: Options, order: Order | None
    ) -> None:
        self.arguments = arguments
        """Arguments that a copy of the loader is built with."""
        self.options = options
        self.ahead = 0
        """Minimum of whole batches made ahead, found while the loader worked."""
        self._loader_ref = weakref.ref(loader)
        self._planned_batches = loader.batch_sampler if order else None
        current = options.current(loader, order, self.ahead)
        self.stream = BatchStream(current, create_position(current, loader))
        self.recording = Recording(self.stream)
        self.adaptation: Adaptation | None = None
        self._agreement = RankAgreement()
        self._owner = os.getpid()
        self._iterations = 0  # how many have begun
        self._current: weakref.ref[EpochIterator] | None = None
        self._earlier: weakref.WeakSet[BatchStream] = weakref.WeakSet()

    @property
    def _loader(self) -> Any:
        loader = self._loader_ref()
        assert loader is not None, "an iterator keeps its loader alive"
        return loader

    # Order

    def current_options(self) -> Options:
        """Options from the loader's current attributes."""
        return self.options.current(self._loader, self.create_order(), self.ahead)

    def create_order(self) -> Order | None:
        """Order for the current length of the dataset and the current ranks."""
        planned = self._planned_batches
        if planned is None or self._loader.batch_sampler is not planned:
            return None  # a framework has put another batch sampler in its place
        return create_order(self.options)

    @property
    def current_order(self) -> Order | None:
        """Order of the current epoch, or of the next one."""
        return self.stream.options.order if self.stream.has_delivered else self.create_order()

    def steps(self, epoch: int) -> int:
        """Number of batches of an epoch."""
        order = self.current_order
        return order.steps(epoch) if order else self.stream.position.steps(epoch)

    # Iterations

    def begin_pass(self, iterator: EpochIterator) -> None:
        """Begin an epoch with the loader's current attributes.

        Raises:
            UsageError: the dataset has no samples to request, or the ranks differ.
        """
        self.ensure_usable()
        fixed, stream, loader = self.options, self.stream, self._loader
        if not (fixed.native or fixed.iterable):
            check_samples(loader.dataset, sampled=fixed.sampled)
        options = self.current_options()
        if options.order is not None:
            self._agreement.check(options.order, stream.position.current, options.dataset)
            stream.filling.agree(self._agreement, options.order)
        elif not (fixed.iterable or loader.in_a_wrapper):
            self._agreement.warn_of_draws(options.index_sampler)
        self._begin(iterator, options)
        if isinstance(loader.sampler, PlannedSampler) and options.order is not None:
            loader.sampler.follow(options.order, options.dataset)

    def _begin(self, iterator: EpochIterator, options: Options) -> None:
        """Begin an iteration; the previous one continues independently from here."""
        began_ns = time.monotonic_ns()
        earlier, self._current = self._unfinished(), None
        if earlier is not None and (position := self.stream.position.fork()) is not None:
            self._split_off(earlier, position)
        self.stream.adopt(options)
        self.stream.begin()
        self.recording.begin(began_ns)
        if self.adaptation is not None:
            self.adaptation.pause()
        self._current = weakref.ref(iterator)
        self._iterations += 1
        # As torch's workers end with their iterator.
        end = weakref.finalize(iterator, self._abandon, self._iterations)
        end.atexit = False

    def _split_off(self, iterator: EpochIterator, position: LoaderPosition) -> None:
        """Give an iterator its own stream."""
        iterator.stream = stream = self.stream.split_off(position)
        self._earlier.add(stream)
        end = weakref.finalize(iterator, stream.close)
        end.atexit = False

    def next(self, iterator: EpochIterator) -> Any:
        """Return the next batch of the newest iteration; raises like an engine's `next`."""
        if self._current is None or self._current() is not iterator:
            self._begin(iterator, self.stream.options)  # replaced before its first batch
        if self.adaptation is None:
            return self.stream.next()
        self.adaptation.follow()
        asked_ns = time.monotonic_ns()
        batch = self.stream.next()
        self.adaptation.notice(asked_ns)
        return batch

    def ended(self) -> None:
        """End the newest iteration after the epoch's last batch."""
        self._current = None
        self.recording.end("exhausted")

    @property
    def _keeps_iterator(self) -> bool:
        """True if torch's loader would keep its iterator; an IterableDataset uses torch's own."""
        loader = self._loader
        return loader.persistent_workers and loader.num_workers and not self.options.iterable

    def kept_iterator(self) -> EpochIterator | None:
        """Latest iterator with persistent workers, also after its end; otherwise None."""
        if not (self._keeps_iterator and self._iterations and self.stream.is_started):
            return None
        current = None if self._current is None else self._current()
        return current or EpochIterator.after_the_last(self._loader, self)

    def drop_kept_iterator(self) -> None:
        """End persistent workers, unless an iteration is in progress."""
        is_idle = self._iterations and self._unfinished() is None and os.getpid() == self._owner
        if self._keeps_iterator and is_idle:
            self.stream.end_workers()

    def _unfinished(self) -> EpochIterator | None:
        """Newest iterator, unless it has ended or is garbage."""
        current = None if self._current is None else self._current()
        return None if current is None or current.ended else current

    def _abandon(self, number: int) -> None:
        """Clean up after a garbage-collected iterator: its workers end, unless they live on."""
        is_own = os.getpid() == self._owner
        if is_own and self._current is not None and number == self._iterations:
            self._current = None
            self.recording.end("left")
            if not self.stream.workers_live_on:
                self.stream.end_workers()

    def shut_down(self, iterator: EpochIterator) -> None:
        """End the workers of the newest iterator, if no later one uses them."""
        current = None if self._current is None else self._current()
        if current is iterator:
            self.recording.end("left")
        if current is None or current is iterator or current.ended:
            handles = self.stream.end_workers()
            iterator.ended_workers = iterator.ended_workers or handles
            self._current = None

    # Position

    def adopt_before_epoch(self) -> None:
        """Update the ranks and the dataset's length, unless an epoch is in progress.

        Lightning, for one, initialises torch.distributed in `fit`, after the loader was built.
        """
        if not self.stream.has_delivered:
            self.stream.adopt(self.current_options())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, or of the current one before its first batch."""
        self.ensure_usable()
        if not is_count(epoch):
            raise UsageError(f"epoch must be a whole number of at least 0, got {epoch!r}")
        self._move(lambda position: position.set_epoch(epoch))

    def set_step(self, step: int) -> None:
        """Skip the first `step` batches of the next iteration's epoch."""
        self.ensure_usable()
        if not is_count(step):
            raise UsageError(f"step must be a whole number of at least 0, got {step!r}")
        self.adopt_before_epoch()
        self._move(lambda position: position.set_step(step))

    def set_image_size(self, image_size: int | None) -> None:
        """Set the image size of all following batches. None returns to the schedule."""
        self.ensure_usable()
        check_argument("image_size", image_size)
        self.stream.set_image_size(image_size)

    def refresh(self) -> None:
        """Re-read the dataset and start new workers when the next iteration begins."""
        self.ensure_usable()
        self.stream.refresh()

    def _move(self, move: Callable[[LoaderPosition], bool]) -> None:
        """Move the position; `move` returns True if it moved. A started iteration continues
        independently.
        """
        iterator, stream = self._unfinished(), self.stream
        fork = stream.position.fork() if stream.has_delivered else None
        if move(stream.position):
            if fork is not None and iterator is not None:
                self._split_off(iterator, fork)
                self._current, stream.has_delivered = None, False
            stream.engine.restart_prefetch()

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a state."""
        self.adopt_before_epoch()
        return self.stream.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the batches not yet delivered in a state."""
        self.ensure_usable()
        self.adopt_before_epoch()
        self.stream.load(state)
        self._agreement.forget()

    # Life

    def ensure_usable(self) -> None:
        """Raise ClosedError after `close`; in a forked process, continue with new workers."""
        if os.getpid() != self._owner:
            self._current, self._earlier = None, weakref.WeakSet()
            self._owner = os.getpid()
        self.stream.ensure_usable()

    def close(self) -> None:
        """End all workers and free all memory; not in a forked child of their process."""
        if os.getpid() == self._owner:
            current = self._unfinished()
            with contextlib.ExitStack() as closing:  # each of them, whatever the others raise
                for stream in list(self._earlier):
                    closing.callback(stream.close)
                handles = self.stream.close()
                if current is not None:
                    current.ended_workers = handles


class EpochIterator(_BaseDataLoaderIter):
    """The batches of one epoch. An error in one `next` does not end it, nor does Ctrl-C.

    A batch counts as delivered when everything else is done: if an interrupt comes before that, the
    next call returns the same batch.

    A subclass of torch's iterator, because frameworks test for that class; it inherits no code. Its
    private attributes are those that public code uses on torch's iterators.

    Args:
        loader: kept alive by its iterations.
        state: running state of the loader.
    """

    def __init__(self, loader: Any, state: LoaderState) -> None:
        self._loader = loader
        self._state = state
        self._process = os.getpid()
        self._dataset, self._num_workers = loader.dataset, loader.num_workers
        self._index_sampler = loader._index_sampler
        self._profile_name = _profile_name(loader)
        self.prepare()

    def prepare(self) -> None:
        """Prepare for the first batch of a pass."""
        self.stream = self._state.stream
        """Makes the batches; replaced when a later iteration begins."""
        self.ended = False
        self.ended_workers: list[Any] = []
        """Handles of workers that ended with the iteration."""
        self._shutdown = False
        self._num_yielded = 0

    @classmethod
    def after_the_last(cls, loader: Any, state: LoaderState) -> EpochIterator:
        """Create an iterator that has ended, for access to the workers that outlive it."""
        iterator = cls(loader, state)
        iterator.ended = True
        return iterator

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        """Return the next batch."""
        # To enter record_function takes 9 us, whether a profiler is active or not; to ask, 0.05 us.
        if _profiler_enabled() and self._profile_name:
            with record_function(self._profile_name):
                batch = self._fetch()
        else:
            batch = self._fetch()
        self.stream.delivered()
        return batch

    def _next_data(self) -> Any:
        """Return the next batch, without an entry for profilers."""
        batch = self._fetch()
        self.stream.delivered()
        return batch

    def _fetch(self) -> Any:
        """Return the next batch; the position stays before it until `delivered`."""
        if self.ended:
            raise StopIteration
        if self._shutdown:
            raise ClosedError(
                "the workers of this iterator were ended by its _shutdown_workers(); create "
                "another one with iter(loader)"
            )
        if os.getpid() != self._process:
            raise UsageError(
                "this iterator belongs to another process; create one here with iter(loader)"
            )
        state, stream, recording = self._state, self.stream, self._state.recording
        is_newest = stream is state.stream
        stream.ensure_usable()
        timed = is_newest and recording.rest <= 0
        asked_ns, asked_cpu_ns = (time.monotonic_ns(), time.thread_time_ns()) if timed else (0, 0)
        try:
            batch = state.next(self) if is_newest else stream.next()
        except StopIteration:
            self.ended = True  # first: whatever breaks off what follows, no batch comes any more
            self.ended_workers = stream.finish()
            if is_newest:
                state.ended()
            else:
                stream.close()
            raise
        except BaseException as error:
            recording.note_exception()
            if isinstance(error, Exception):
                stream.raise_if_closed(error)
            raise
        if timed:
            recording.note_batch(batch, asked_ns, asked_cpu_ns)
        elif is_newest and recording.rest > 0:  # else a pass has begun
            recording.rest -= 1
        self._num_yielded += 1
        return batch

    def at_end(self) -> bool:
        """True if no batches are left, for an order made or drawn by feedline."""
        return self.stream.position.is_at_end()

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iterator cannot be pickled; pickle the loader")

    @property
    def _workers(self) -> list[Any]:
        """Workers, in the form expected by tools that know torch's iterators.

        After the end of the epoch and its workers, the last ones.
        """
        deadline = time.monotonic() + _STARTED_WITHIN_S
        engine = self.stream.engine
        with contextlib.suppress(FeedlineError):  # the next batch raises it
            while len(engine.pids) < engine.workers and time.monotonic() < deadline:
                self.stream.ensure_usable()
                time.sleep(0.001)
                engine.poll()
        return self.ended_workers or engine.handles

    def _shutdown_workers(self) -> None:
        """End the workers of this iterator, or of its loader after the last batch.

        A second call does nothing, nor does one without workers. The next `iter(loader)` starts
        new workers.
        """
        if not self._shutdown and self._num_workers and os.getpid() == self._process:
            self._shutdown = True
            if self.stream is self._state.stream:
                self._state.shut_down(self)
            else:
                self.ended_workers = self.ended_workers or self.stream.end_workers()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Start another pass over the loader with this iterator."""
        if self.stream is not self._state.stream:
            self.stream.close()
        self.ended = True  # the pass under way is over
        self._state.begin_pass(self)
        self.prepare()


def _profile_name(loader: Any) -> str:
    """Name of torch's profiler entry; "" if torch's own iterator makes that entry."""
    if isinstance(loader.dataset, IterableDataset):
        return ""
    kind = "_MultiProcessing" if loader.num_workers else "_SingleProcess"
    return f"enumerate(DataLoader)#{kind}DataLoaderIter.__next__"
