"""One pass over a loader, and the workers as torch's iterators show them."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Protocol

from torch.utils.data.dataloader import _BaseDataLoaderIter

from feedline.errors import FeedlineError, UsageError
from feedline.loader.backends.backend import Backend
from feedline.loader.recording import Recording

__all__ = ["Iteration"]

_STARTED_WITHIN_S = 10.0


class _Session(Protocol):
    """What an iteration asks for its batches: `session.Session`."""

    @property
    def backend(self) -> Backend: ...

    @property
    def cursor(self) -> Any: ...

    @property
    def recording(self) -> Recording: ...

    def ensure_usable(self) -> None: ...

    def next(self, iteration: Any) -> Any: ...

    def step(self) -> Any: ...

    def delivered(self) -> None: ...

    def finish(self) -> None: ...

    def close(self) -> None: ...


class Iteration(_BaseDataLoaderIter):
    """The batches of one epoch. An error in one `next` does not end it, nor does Ctrl-C.

    A batch counts as handed out when all else is done: where an interrupt comes before that, the
    next call gives the same batch.

    Of torch's class for the name's sake: frameworks tell iterators over a loader from others by it,
    as those that cannot be pickled. It has nothing of it.

    Args:
        loader: kept alive by its iterations.
        session: makes the batches; another one from when a later iteration begins.
    """

    def __init__(self, loader: object, session: _Session) -> None:
        self.session = session
        self.ended = False
        self.ended_workers: list[Any] = []  # those that ended with it
        self._loader = loader
        self._own = session
        self._process = os.getpid()

    def __iter__(self) -> Iteration:
        return self

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        """The next batch."""
        if self.ended:
            raise StopIteration
        if os.getpid() != self._process:
            raise UsageError(
                "this iteration belongs to the process that began it; begin one here, by iter()"
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
        except BaseException:
            recording.raised()
            raise
        if timed:
            recording.handed_out(batch, asked_ns, asked_cpu_ns)
        elif own and recording.rest > 0:  # else a pass has begun
            recording.rest -= 1
        session.delivered()
        return batch

    def at_end(self) -> bool:
        """Whether no batch is left, of an iteration whose order feedline makes or draws."""
        return bool(self.session.cursor.at_end())

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iteration cannot be pickled; pickle the loader")

    @property
    def _workers(self) -> list[Any]:
        """The workers, as tools that know torch's iterators look for them.

        When the epoch and its workers have ended, those that there were.
        """
        deadline = time.monotonic() + _STARTED_WITHIN_S
        backend = self.session.backend
        with contextlib.suppress(FeedlineError):  # the next batch raises it
            while len(backend.pids) < backend.workers and time.monotonic() < deadline:
                self.session.ensure_usable()
                time.sleep(0.001)
                backend.poll()
        return self.ended_workers or backend.handles
