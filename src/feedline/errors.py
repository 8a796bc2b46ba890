"""The exceptions, all of them.

FeedlineError
├── UsageError (ValueError)        an argument, file or folder that cannot be used as asked
│   ├── ScheduleError              a schedule that does not parse or does not add up
│   ├── DatasetError               a folder or index that is missing, empty or untidy
│   └── StateError                 a state of another dataset, seed or schedule
├── ResourceError (MemoryError)    memory, descriptors or processes this machine does not have
├── SaveError (OSError)            a checkpoint could not be written; the earlier one stays
├── ClosedError (RuntimeError)     you closed the loader and then used it
├── SampleError (RuntimeError)     one sample could not be loaded; names it
│   └── ImageError                 an image that cannot be decoded as it claims to be
└── WorkerError (RuntimeError)     the machinery broke: a worker or the fork server failed
    ├── StartError                 a worker could not begin with the dataset that it was given
    └── LoadTimeoutError           no batch came within `timeout` seconds

A message says what was asked, what was found, the likely cause and the next step.
`UsageError` and below and `ResourceError` end a command with exit status 2, the others with 1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

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
    "UsageError",
    "WorkerError",
    "note",
    "python_argument",
]


class FeedlineError(Exception):
    """Base class of all exceptions of feedline.

    Args:
        args: the message: what failed, the value and the limit, the cause if known. It continues
            the name of the argument, if there is one.
        argument: name of the argument at fault.
        hint: what to do about it; shown on a line of its own.
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
        super().__init__(*args)
        self.argument, self.hint, self.fix = argument, hint, dict(fix or {})

    def __str__(self) -> str:
        return self.text(python_argument)

    def text(self, spell: Callable[..., str]) -> str:
        """Message and hint, with arguments as `spell(name)` or `spell(name, value)` writes them."""
        message = super().__str__()
        if self.argument:
            message = f"{spell(self.argument)} {message}"
        fixes = ", ".join(spell(name, value) for name, value in self.fix.items())
        hint = ": ".join(part for part in (self.hint, fixes) if part)
        return f"{message}\nhint: {hint}" if hint else message


def python_argument(name: str, value: object = None) -> str:
    """Write an argument as in Python: `name` or `name="value"`."""
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    return name if value is None else f"{name}={shown}"


class UsageError(FeedlineError, ValueError):
    """What was asked for cannot be done as asked."""


class ScheduleError(UsageError):
    """A schedule does not parse or does not add up."""


class DatasetError(UsageError):
    """A folder or an index is missing, empty or untidy."""


class StateError(UsageError):
    """A state belongs to another dataset, seed, schedule or version."""


class ResourceError(FeedlineError, MemoryError):
    """The machine lacks the memory, descriptors or processes that were asked for."""


class SaveError(FeedlineError, OSError):
    """A checkpoint could not be written; the earlier one is as it was."""


class ClosedError(FeedlineError, RuntimeError):
    """The loader was closed before it was used."""


class SampleError(FeedlineError, RuntimeError):
    """One sample could not be loaded. The message names it."""


class ImageError(SampleError):
    """An image file cannot be decoded as what it claims to be."""


class WorkerError(FeedlineError, RuntimeError):
    """A worker process or the fork server failed beyond repair."""


class StartError(WorkerError):
    """A worker could not begin with the dataset that it was given. Holds the worker's traceback."""


class LoadTimeoutError(WorkerError):
    """No batch came within the loader's `timeout`. Iterating again loads the same batch again.

    Args:
        message: what happened.
        seconds: for how long no worker finished anything.
        worker: number of the worker that the batch waits for; None if unknown.
        sample: number or key of the sample that this worker is on; None if unknown.
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
    """Add a line to what an exception says of itself, unless its class allows no change."""
    notes = getattr(error, "__notes__", None)
    with contextlib.suppress(Exception):
        if notes is None:
            notes = error.__notes__ = []  # type: ignore[attr-defined]
        notes.append(text)
