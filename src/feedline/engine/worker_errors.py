"""Exceptions on their way from a worker, with the failing sample and the fix in their notes.

Guarantees: a user's exception and its message are not changed; a note is added, unless its class
does not allow it. To find a sample's file, no user code runs except attribute access; anything that
is not a list of paths of the dataset's length gives None, not a guess.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import traceback
from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

from feedline.engine.messages import SkippedSample
from feedline.engine.payload import find_unpicklable, plain_dump
from feedline.engine.transform_errors import describe_code_error
from feedline.errors import FeedlineError, UsageError, note
from feedline.order.batch_spec import BatchSpec
from feedline.private_names import find_private
from feedline.system import find_attribute


@dataclass(frozen=True)
class SkippedBatch:
    """A batch and its skipped samples."""

    batch: Any
    skipped: tuple[SkippedSample, ...]
    is_empty: bool = False  # all samples were skipped, and there is no batch


@dataclass(frozen=True)
class WorkerException:
    """An exception on its way between processes, in the form that torch's workers use.

    A UsageError is raised again with its own message, which contains the fix; its `__cause__` has
    the traceback.
    """

    kind: type[BaseException]  # RuntimeError for a class that cannot be sent
    message: str  # origin, notes and traceback
    usage_error_message: str = ""  # of a UsageError, which is raised again with it

    @classmethod
    def of(cls, error: BaseException, worker_id: int | None) -> WorkerException:
        """Catch an exception in a worker."""
        # These two would end the program, or the epoch, without a word.
        unfit = isinstance(error, (SystemExit, StopIteration))
        kind = RuntimeError if unfit else type(error)
        notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
        with contextlib.suppress(Exception):  # its class may allow no change
            error.__notes__ = []  # type: ignore[attr-defined]  # already in the message
        trace = "".join(traceback.format_exception(error))
        origin = f"in DataLoader worker process {worker_id}"
        message = f"Caught {type(error).__name__} {origin}.{notes}\nOriginal {trace}"
        try:
            pickle.loads(pickle.dumps(kind))
        except Exception:
            kind = RuntimeError  # its class is known in the worker only
        own = f"{error}{notes}" if isinstance(error, UsageError) else ""
        return cls(kind, message, own)

    def error(self) -> BaseException:
        """Exception to raise in the trainer."""
        if issubclass(self.kind, KeyError):  # prints the repr of its argument
            with contextlib.suppress(UsageError):
                return self.kind(find_private("torch._utils.KeyErrorMessage")(self.message))
        try:
            error = self.kind(self.usage_error_message or self.message)
        except Exception:  # its class wants other arguments
            return RuntimeError(self.message)
        if self.usage_error_message:
            error.__cause__ = RuntimeError(self.message)
        return error


def note_failing_sample(error: BaseException, dataset: object, key: object) -> None:
    """Add a note with the failing sample to an exception."""
    text = f"Raised for the sample with index {key!r} of {type(dataset).__name__}."
    if isinstance(error, IndexError) and isinstance(dataset, Sized):
        text += f" Check __len__: it returns {len(dataset)}."
    elif isinstance(error, SystemExit):
        text += " It called sys.exit(): raise an ordinary exception instead."
    if description := describe_code_error(error):
        text += f" {description[0].upper()}{description[1:]}."
    note(error, text)


def note_unpicklable(error: Exception, batch: object) -> None:
    """Add a note with the unpicklable part of a batch to an exception, unless memory ran out."""
    if isinstance(error, (FeedlineError, MemoryError, OSError)):
        return
    part = find_unpicklable(batch, "batch", plain_dump)
    if part is not None:
        note(
            error,
            f"Batches are pickled to return from a worker, and {part.path}, of type "
            f"{type(part.value).__name__}, cannot be pickled: convert it to tensors, numbers or "
            "text in collate_fn or __getitem__, or use num_workers=0.",
        )


_LISTS = ("samples", "imgs", "paths", "files", "image_paths", "filenames")
_MOST_SUBSETS = 16  # subsets of subsets


def sample_path(dataset: Any, number: int) -> str | None:
    """Path of a sample, through torch's Subsets; None if unknown."""
    with contextlib.suppress(Exception):  # of a class that has an attribute in name only
        for _ in range(_MOST_SUBSETS):
            indices, inner = getattr(dataset, "indices", None), getattr(dataset, "dataset", None)
            if inner is None or not isinstance(indices, Sequence):
                break
            if not 0 <= number < len(indices):
                return None
            dataset, number = inner, int(indices[number])
        length = len(dataset)
        if not 0 <= number < length:
            return None
        for name in _LISTS:
            listed = vars(dataset).get(name)
            if isinstance(listed, (list, tuple)) and len(listed) == length:
                first = listed[number]
                path = first[0] if isinstance(first, (tuple, list)) and first else first
                if isinstance(path, (str, os.PathLike)):
                    return os.fspath(path)
        if type(dataset).__module__.startswith("feedline."):
            return str(dataset.path(number))  # as its own ImageFolder has it
    return None


def describe_sample(dataset: Any, batch: BatchSpec, row: int) -> tuple[Any, str]:
    """Key of a batch's sample (None if unknown), and its description with the path."""
    keys = batch.dataset_keys
    if not isinstance(keys, (list, tuple)):
        keys = [keys]
    if find_attribute(dataset, "__getitems__") is not None or row >= len(keys):
        return None, f"a batch of {len(keys)} samples"
    key = keys[row]
    path = sample_path(dataset, key) if isinstance(key, int) else None
    return key, f"sample {key!r}" + (f", {path}" if path else "")
