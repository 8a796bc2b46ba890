"""One pass over an iterable that is watched.

Guarantees: batches and exceptions are the iterator's own, and after an exception it is asked
again, if the loop asks again. A pass is over when its iterator is exhausted or nobody has it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from feedline.trace.recorder import Recorder
from feedline.watching.source import Source
from feedline.watching.step_watch import StepWatch

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
            self._let_go()
            self._end("left")

    def _let_go(self) -> None:
        """Nobody has this any more: its loader learns of that before the run is written."""
        del self._iterator


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
        self._source = source
        self._steps = StepWatch(recorder, source.number, began_ns)
        self.clock = self._steps.clock

    def __next__(self) -> _T:
        asked_ns = self._steps.asked()
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._end("exhausted")
            raise
        except BaseException:
            self._steps.raised()
            raise
        finally:
            if self._begins:
                self._begins = False
                self._starting.close()  # the user's loader is as it was
        self._steps.got(batch, asked_ns)
        self._told()
        return batch

    def _let_go(self) -> None:
        """Workers that end with the iterator are to be seen once more."""

    def _end(self, how: str) -> None:
        if not self._over:
            self._over = True
            self._source.going -= 1
            self._starting.close()
            self._steps.end(how)
            with contextlib.suppress(Exception):  # of a user's list of samples
                self._source.remember_names()
            self._ended()
