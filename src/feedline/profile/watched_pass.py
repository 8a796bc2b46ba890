"""One pass over a watched iterable.

Guarantees: batches and exceptions are those of the iterator; after an exception the loop may
request further batches. A pass ends when its iterator is exhausted or freed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from feedline.profile.loader_probe import LoaderProbe
from feedline.profile.step_recorder import StepRecorder
from feedline.timing.recorder import Recorder

__all__ = ["RecordedPass", "WatchedPass"]

_T = TypeVar("_T")


class WatchedPass(Generic[_T]):
    """A pass over a loader that records itself.

    Args:
        iterator: iterator of the loader.
        on_batch: called after each batch.
        on_end: called at the end of the pass.
    """

    def __init__(
        self, iterator: Iterator[_T], on_batch: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self._iterator = iterator
        self._on_batch = on_batch
        self._on_end = on_end
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
        self._on_batch()
        return batch

    def _end(self, how: str) -> None:
        if not self._over:
            self._over = True
            self._on_end()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be about to end
            self._release()
            self._end("left")

    def _release(self) -> None:
        """Free the loader's iterator before the run is written, so that it records its end."""
        del self._iterator


class RecordedPass(WatchedPass[_T]):
    """A pass over an iterable of another library, whose steps are recorded here.

    Args:
        recorder: recorder of the run.
        probe: probe of the iterable.
        iterable: the iterable.
        on_batch: called after each batch.
        on_end: called at the end of the pass.
        iterate: returns the iterator of the iterable.

    Raises:
        Exception: any error of the iterable.
    """

    def __init__(
        self,
        recorder: Recorder,
        probe: LoaderProbe,
        iterable: Iterable[_T],
        on_batch: Callable[[], None],
        on_end: Callable[[], None],
        iterate: Callable[[Any], Iterator[Any]] = iter,
    ) -> None:
        self._over = True  # until the start has succeeded
        start_ns = time.monotonic_ns()
        self._starting, self._is_first = contextlib.ExitStack(), True
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._starting)
            iterator = probe.start(iterable, self._starting, iterate)
            super().__init__(iterator, on_batch, on_end)
            undo.pop_all()
        probe.running += 1
        self._probe = probe
        self._steps = StepRecorder(recorder, probe.number, start_ns)
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
        self._on_batch()
        return batch

    def _release(self) -> None:
        """Keep the iterator: workers that end with it are read once more."""

    def _end(self, how: str) -> None:
        if not self._over:
            self._over = True
            self._probe.running -= 1
            self._starting.close()
            self._steps.end(how)
            with contextlib.suppress(Exception):  # raised by the user's list of samples
                self._probe.remember_names()
            self._on_end()
