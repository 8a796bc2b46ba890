"""What comes home from a worker instead of a batch, or with one: exceptions, samples left out."""

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
    """A batch, and the samples that were left out of it: their names and why."""

    batch: Any
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class WorkerException:
    """An exception on its way between processes, as torch's own workers send it.

    A UsageError says itself what to do: it comes home with its own message, and where it was caught
    is its cause.

    Args:
        kind: its class; RuntimeError for one that cannot be sent.
        message: what it shall say: where it was caught, the notes on it, the traceback there.
        own: what it said itself, for one that shall say no more than that.
    """

    kind: type[BaseException]
    message: str
    own: str = ""

    @classmethod
    def of(cls, error: BaseException, place: str) -> WorkerException:
        """Catch an exception; `place` says where, as in "in DataLoader worker process 0"."""
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
        """The exception to raise here."""
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
    """Put the notes on an exception into its message, for Pythons that print no notes.

    An exception whose message is not what it was made with stays as it is.
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
    """KeyError shows the repr of what it holds: this one's is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
