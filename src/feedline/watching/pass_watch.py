"""One pass over an iterable that is watched.

Guarantees: batches and exceptions are the iterator's own, and after an exception it is asked
again, if the loop asks again. Nothing that fails here reaches the loop: it is logged, and noted in
the run, and this pass is watched no further.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from feedline.trace.look import Looker
from feedline.trace.pass_record import PassRecord
from feedline.trace.recorder import Recorder
from feedline.watching.device_clock import DeviceClock, device_event
from feedline.watching.failed import failed
from feedline.watching.source import Source

__all__ = ["OwnPass", "PassWatch"]

_T = TypeVar("_T")


class OwnPass(Generic[_T]):
    """A pass over a loader that records itself.

    Args:
        iterator: that is watched.
        told: is called after each batch.
        ended: is called when the pass is over.
    """

    def __init__(
        self, iterator: Iterator[_T], told: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        self._iterator = iterator
        self._told = told
        self._ended = ended
        self._over = False

    def __iter__(self) -> Iterator[_T]:
        return self

    def __getattr__(self, name: str) -> Any:
        """Whatever is asked of an iterator, it answers itself."""
        if name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> _T:
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._end("exhausted")
            raise
        self._told()
        return batch

    def _end(self, how: str) -> None:
        if not self._over:
            self._over = True
            self._ended()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be about to end
            self._end("left")


class PassWatch(OwnPass[_T]):
    """A pass over an iterable of someone else's.

    Args:
        recorder: of the run.
        source: what the run knows of the iterable.
        iterable: itself.
        told: is called after each batch.
        ended: is called when the pass is over.

    Raises:
        Exception: whatever the iterable raises.
    """

    def __init__(
        self,
        recorder: Recorder,
        source: Source,
        iterable: Iterable[_T],
        told: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._over = True  # it has not begun
        began_ns = time.monotonic_ns()
        self._starting, self._begins = contextlib.ExitStack(), True
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._starting)
            super().__init__(source.begin(iterable, self._starting), told, ended)
            undo.pop_all()
        source.going += 1
        self._recorder = recorder
        self._source = source
        self._looker = Looker()
        self._record: PassRecord | None = None
        self.clock: DeviceClock | None = None
        """Tells of steps when the device has done them, which may be after the pass."""
        try:
            self._record = self._begun(began_ns)
        except Exception as error:
            self._fail(error)

    def _begun(self, began_ns: int) -> PassRecord:
        event = device_event()
        on_device = event is not None
        record = self._recorder.begin(
            self._source.number, None, began_ns, timed_elsewhere=on_device, device_clock=on_device
        )
        if event is not None:
            self.clock = DeviceClock(event, record)
        return record

    def __next__(self) -> _T:
        asked_ns = self._asked()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._end("exhausted")
            raise
        except BaseException:
            if self._record is not None:
                self._record.raised()
            raise
        finally:
            if self._begins:
                self._begins = False
                self._starting.close()  # the user's loader is as it was
        if self._record is not None:
            try:
                if self.clock is not None:
                    self.clock.got()
                seen = self._looker.look_at(batch)
                self._record.handed_out(seen, asked_ns, time.monotonic_ns())
            except Exception as error:
                self._fail(error)
        self._told()
        return batch

    def _asked(self) -> int:
        """A batch is asked for; when that is."""
        asked_ns = time.monotonic_ns()
        if self.clock is not None:
            try:
                self.clock.asked()
            except Exception as error:
                self._fail(error)
        return asked_ns

    def _end(self, how: str) -> None:
        if self._over:
            return
        self._over = True
        self._source.going -= 1
        self._starting.close()
        try:
            if self.clock is not None:
                self.clock.settle()
            if self._record is not None:
                self._recorder.end(self._record, how)
                self._source.remember_names()
        except Exception as error:
            self._fail(error)
        self._ended()

    def _fail(self, error: Exception) -> None:
        record, self._record, self.clock = self._record, None, None
        if record is not None and not record.over:
            self._recorder.end(record, "left")
        failed(self._recorder, "the pass is recorded no further", error)
