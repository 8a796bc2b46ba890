"""Notes added to a user's exception: the failing sample and the fix.

Guarantees: the exception and its message are not changed; a note is added, unless its class does
not allow it.
"""

from __future__ import annotations

from collections.abc import Sized

from feedline.engine.culprit import culprit_in
from feedline.errors import FeedlineError, note

__all__ = ["blame", "explain"]


def blame(error: BaseException, dataset: object, key: object) -> None:
    """Add a note with the failing sample to an exception."""
    text = f"Raised for the sample with index {key!r} of {type(dataset).__name__}."
    if isinstance(error, IndexError) and isinstance(dataset, Sized):
        text += f" Check __len__: it returns {len(dataset)}."
    elif isinstance(error, SystemExit):
        text += " It called sys.exit(): raise an ordinary exception instead."
    note(error, text)


def explain(error: Exception, batch: object) -> None:
    """Add a note with the unpicklable part of a batch to an exception, unless memory ran out."""
    if isinstance(error, (FeedlineError, MemoryError, OSError)):
        return
    found = culprit_in(batch, "batch")
    note(
        error,
        f"Batches are pickled to return from a worker, and {found.path}, of type "
        f"{type(found.value).__name__}, cannot be pickled: convert it to tensors, numbers or text "
        "in collate_fn or __getitem__, or use num_workers=0.",
    )
