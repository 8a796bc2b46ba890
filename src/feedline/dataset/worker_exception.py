"""Exceptions and skipped samples, as a worker returns them to the trainer."""

from __future__ import annotations

import contextlib
import pickle
import traceback
from dataclasses import dataclass
from typing import Any

from feedline.engine.messages import said
from feedline.errors import UsageError

__all__ = ["SkippedBatch", "WorkerException", "say_notes"]


@dataclass(frozen=True)
class SkippedBatch:
    """A batch and its skipped samples, each with its key and the reason."""

    batch: Any
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class WorkerException:
    """An exception on its way between processes, in the form of torch's workers.

    A UsageError contains the fix: it is raised with its own message, and its origin is the cause.

    Args:
        kind: class; RuntimeError for a class that cannot be sent.
        message: origin, notes and traceback of the exception.
        own: original message, for an exception that is raised with that alone.
    """

    kind: type[BaseException]
    message: str
    own: str = ""

    @classmethod
    def of(cls, error: BaseException, place: str) -> WorkerException:
        """Catch an exception; `place` is its origin, e.g. "in DataLoader worker process 0"."""
        # These two would end the program, or the epoch, without a word.
        unfit = isinstance(error, (SystemExit, StopIteration))
        kind = RuntimeError if unfit else type(error)
        notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
        with contextlib.suppress(Exception):  # its class may allow no change
            error.__notes__ = []  # type: ignore[attr-defined]  # said already
        trace = "".join(traceback.format_exception(error))
        message = f"Caught {type(error).__name__} {place}.{notes}\nOriginal {trace}"
        try:
            pickle.loads(pickle.dumps(kind))
        except Exception:
            kind = RuntimeError  # its class is known in the worker only
        own = f"{error}{notes}" if isinstance(error, UsageError) else ""
        return cls(kind, message, own)

    def error(self) -> BaseException:
        """Exception to raise in the trainer."""
        if issubclass(self.kind, KeyError):
            return self.kind(_Text(self.message))
        try:
            found = self.kind(self.own or self.message)
        except Exception:  # its class wants other arguments
            return RuntimeError(self.message)
        if self.own:
            found.__cause__ = RuntimeError(self.message)
        return found


def say_notes(error: BaseException) -> None:
    """Append an exception's notes to its message, for Pythons that print no notes.

    An exception whose message differs from its first argument stays unchanged.
    """
    notes = "\n".join(getattr(error, "__notes__", ()))
    first = error.args[0] if error.args else ""
    with contextlib.suppress(Exception):  # its class may allow no change
        if not notes:
            return
        if isinstance(error, OSError) and error.strerror is not None:
            error.strerror = f"{error.strerror} ({notes})"
        elif isinstance(error, KeyError) and error.args:
            error.args = (_Text(f"{error}\n{notes}"), *error.args[1:])
        elif isinstance(first, str) and said(error) == first:
            error.args = (f"{first}\n{notes}".lstrip(), *error.args[1:])


class _Text(str):
    """Text whose repr is itself: KeyError prints the repr of its argument."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
