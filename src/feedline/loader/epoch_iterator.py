"""One pass over a loader, with the attributes of torch's iterators."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Protocol

from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.autograd.profiler import record_function
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from feedline.errors import ClosedError, FeedlineError, UsageError
from feedline.loader.engines import Engine
from feedline.loader.recording import Recording

__all__ = [
    "EpochIterator",
]


_STARTED_WITHIN_S = 10.0


class _Session(Protocol):
    """Protocol of `session.Session`, from which an iteration gets its batches."""

    @property
    def engine(self) -> Engine: ...

    @property
    def position(self) -> Any: ...

    @property
    def recording(self) -> Recording: ...

    def ensure_usable(self) -> None: ...

    def raise_if_closed(self, cause: Exception | None = None) -> None: ...

    def next(self, iteration: Any) -> Any: ...

    def step(self) -> Any: ...

    def delivered(self) -> None: ...

    def finish(self) -> None: ...

    def shut_down(self, iteration: Any) -> None: ...

    def close(self) -> None: ...


class EpochIterator(_BaseDataLoaderIter):
    """The batches of one epoch. An error in one `next` does not end it, nor does Ctrl-C.

    A batch counts as delivered when everything else is done: if an interrupt comes before that, the
    next call returns the same batch.

    A subclass of torch's iterator, because frameworks test for that class; it inherits no code. Its
    private attributes are those that public code uses on torch's iterators.

    Args:
        loader: kept alive by its iterations.
        session: makes the batches; replaced when a later iteration begins.
    """

    def __init__(self, loader: Any, session: _Session) -> None:
        self._loader = loader
        self._own = session
        self._process = os.getpid()
        self._dataset, self._num_workers = loader.dataset, loader.num_workers
        self._index_sampler = loader._index_sampler
        self._profile_name = _profile_name(loader)
        self.prepare()

    def prepare(self) -> None:
        """Prepare for the first batch of a pass."""
        self.session = self._own
        self.ended = False
        self.ended_workers: list[Any] = []  # those that ended with it
        self._shutdown = False
        self._num_yielded = 0

    @classmethod
    def after_the_last(cls, loader: Any, session: _Session) -> EpochIterator:
        """Create an iteration that has ended, for access to the workers that outlive it."""
        iteration = cls(loader, session)
        iteration.ended = True
        return iteration

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
        self.session.delivered()
        return batch

    def _next_data(self) -> Any:
        """Return the next batch, without an entry for profilers."""
        batch = self._fetch()
        self.session.delivered()
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
        session, recording = self.session, self.session.recording
        session.ensure_usable()
        own = session is self._own
        timed = own and recording.rest <= 0
        asked_ns, asked_cpu_ns = (time.monotonic_ns(), time.thread_time_ns()) if timed else (0, 0)
        try:
            batch = session.next(self) if own else session.step()
        except StopIteration:
            self.ended = True  # first: whatever breaks off what follows, no batch comes any more
            session.finish()
            if own:
                recording.end("exhausted")
            else:
                session.close()
            raise
        except BaseException as error:
            recording.raised()
            if isinstance(error, Exception):
                session.raise_if_closed(error)
            raise
        if timed:
            recording.handed_out(batch, asked_ns, asked_cpu_ns)
        elif own and recording.rest > 0:  # else a pass has begun
            recording.rest -= 1
        self._num_yielded += 1
        return batch

    def at_end(self) -> bool:
        """True if no batches are left, for an order made or drawn by feedline."""
        return bool(self.session.position.is_at_end())

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iterator cannot be pickled; pickle the loader")

    @property
    def _workers(self) -> list[Any]:
        """Workers, in the form expected by tools that know torch's iterators.

        After the end of the epoch and its workers, the last ones.
        """
        deadline = time.monotonic() + _STARTED_WITHIN_S
        engine = self.session.engine
        with contextlib.suppress(FeedlineError):  # the next batch raises it
            while len(engine.pids) < engine.workers and time.monotonic() < deadline:
                self.session.ensure_usable()
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
            self.session.shut_down(self)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Start another pass over the loader with this iterator."""
        if self.session is not self._own:
            self.session.close()
        self.ended = True  # the pass under way is over
        loader._begin(self)
        self.prepare()


def _profile_name(loader: Any) -> str:
    """Name of torch's profiler entry; "" if torch's own iterator makes that entry."""
    if isinstance(loader.dataset, IterableDataset):
        return ""
    kind = "_MultiProcessing" if loader.num_workers else "_SingleProcess"
    return f"enumerate(DataLoader)#{kind}DataLoaderIter.__next__"
