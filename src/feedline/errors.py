"""All exceptions of feedline.

FeedlineError
├── UsageError (ValueError)        invalid argument, file or folder
│   ├── ScheduleError              invalid schedule
│   ├── DatasetError               missing, empty or inconsistent folder or index
│   └── StateError                 state of another dataset, seed or schedule
├── ResourceError (MemoryError)    not enough memory, file descriptors or processes
├── SaveError (OSError)            a checkpoint could not be written; the previous one is unchanged
├── ClosedError (RuntimeError)     the loader was used after close()
├── SampleError (RuntimeError)     a sample could not be loaded; names the sample
│   ├── ImageError                 an image could not be decoded
│   └── StorageError               the storage failed while a file was read; never skipped
└── WorkerError (RuntimeError)     a worker process or the fork server failed
    ├── StartError                 a worker could not start with its dataset
    └── LoadTimeoutError           no batch arrived within `timeout` seconds

A message names what failed, the value and the limit, the likely cause and the fix. Commands exit
with status 2 on `UsageError`, its subclasses and `ResourceError`, and with 1 on the others.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "ClosedError",
    "DatasetError",
    "FeedlineError",
    "ImageError",
    "LoadTimeoutError",
    "ResourceError",
    "SampleError",
    "SaveError",
    "ScheduleError",
    "StartError",
    "StateError",
    "StorageError",
    "UsageError",
    "WorkerError",
    "hide_secrets",
    "note",
    "python_argument",
]


_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://([^/\s'\"]*@)?([^\s'\"?]*)(\?[^\s'\"]*)?")
_QUERY = re.compile(r"\?[\w.~%-]+=[^\s'\"]*")  # also of a relative name
_AT_IN_NAME = ("abfs", "abfss", "github", "oci")
"""Protocols in which a container, a bucket or a repository comes before an @."""


def hide_secrets(text: str) -> str:
    """Replace the queries of URLs by "?...", because a signature in one gives access to the file,
    and remove users and passwords.
    """

    def hide(url: re.Match[str]) -> str:
        protocol, user, path, query = (part or "" for part in url.groups())
        if protocol not in _AT_IN_NAME:
            user = ""
        if protocol.startswith("http") and query:  # elsewhere "?" may be part of a name
            query = "?..."
        return f"{protocol}://{user}{path}{query}"

    if "://" in text:
        text = _URL.sub(hide, text)
    return _QUERY.sub("?...", text) if "?" in text else text


class FeedlineError(Exception):
    """Base class of all feedline exceptions.

    Args:
        args: message: what failed, the value and the limit, the cause if known. It continues the
            name of the argument, if there is one.
        argument: name of the invalid argument.
        hint: how to fix it, printed on a line of its own.
        fix: arguments that would help, with their values; they end the hint.
    """

    argument = hint = ""
    fix: Mapping[str, object] = {}

    def __init__(
        self,
        *args: object,
        argument: str = "",
        hint: str = "",
        fix: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(*(hide_secrets(part) if isinstance(part, str) else part for part in args))
        self.argument, self.hint, self.fix = argument, hide_secrets(hint), dict(fix or {})

    @classmethod
    def of(cls, error: FeedlineError, context: str = "") -> Self:
        """Create an error with the message of another one after a context, and with its hint."""
        message = f"{context}: {error.message}" if context else error.message
        return cls(message, hint=error.hint, fix=error.fix)

    def __str__(self) -> str:
        message, advice = self.parts(python_argument)
        return f"{message}\nhint: {advice}" if advice else message

    @property
    def message(self) -> str:
        """Message without the hint."""
        return self.parts(python_argument)[0]

    @property
    def advice(self) -> str:
        """Hint with the arguments that would help; "" if no argument would."""
        return self.parts(python_argument)[1]

    def parts(self, spell: Callable[..., str]) -> tuple[str, str]:
        """Message and hint, with arguments as `spell(name)` or `spell(name, value)` writes them."""
        message = super().__str__()
        if self.argument:
            message = f"{spell(self.argument)} {message}"
        fixes = ", ".join(spell(name, value) for name, value in self.fix.items())
        return message, ": ".join(part for part in (self.hint, fixes) if part)


def python_argument(name: str, value: object = None) -> str:
    """Write an argument as in Python: `name` or `name="value"`."""
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    return name if value is None else f"{name}={shown}"


class UsageError(FeedlineError, ValueError):
    """Invalid argument, file or folder."""


class ScheduleError(UsageError):
    """Invalid schedule: the text cannot be parsed, or its phases contradict each other."""


class DatasetError(UsageError):
    """Missing, empty or inconsistent folder or index."""


class StateError(UsageError):
    """State of another dataset, seed, schedule or version."""


class ResourceError(FeedlineError, MemoryError):
    """Not enough memory, file descriptors or processes on this machine."""


class SaveError(FeedlineError, OSError):
    """A checkpoint could not be written. The previous one is unchanged."""


class ClosedError(FeedlineError, RuntimeError):
    """The loader was used after `close()`."""


class SampleError(FeedlineError, RuntimeError):
    """A sample could not be loaded. The message names it."""


class ImageError(SampleError):
    """An image could not be decoded."""


class StorageError(SampleError):
    """The storage failed at each try to read a file: a network disk that does not answer, or no
    descriptor or memory left. The file may be intact, so it is never skipped.
    """


class WorkerError(FeedlineError, RuntimeError):
    """A worker process or the fork server failed and could not be replaced."""


class StartError(WorkerError):
    """A worker could not start with its dataset. The message contains the worker's traceback."""


class LoadTimeoutError(WorkerError):
    """No batch arrived within the loader's `timeout`. Iterating again loads the same batch.

    Args:
        message: what happened.
        seconds: time since any worker last finished a task, in seconds.
        worker: number of the worker that makes the missing batch; None if unknown.
        sample: index or key of the sample this worker is loading; None if unknown.
    """

    def __init__(
        self,
        message: str,
        *,
        seconds: float = 0.0,
        worker: int | None = None,
        sample: object = None,
    ) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.worker = worker
        self.sample = sample


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception, unless its class does not allow it."""
    notes = getattr(error, "__notes__", None)
    with contextlib.suppress(Exception):
        if notes is None:
            notes = error.__notes__ = []  # type: ignore[attr-defined]
        notes.append(text)
