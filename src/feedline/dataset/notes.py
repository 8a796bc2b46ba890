"""What is added to a user's exception: which sample it is about, and what to do about it.

Guarantees: the exception stays the user's own. Its message is left alone; a note is added, unless
its class allows no change.
"""

from __future__ import annotations

from collections.abc import Sized

from feedline.engine.culprit import culprit_in
from feedline.errors import FeedlineError, note

__all__ = ["blame", "explain"]


def blame(error: BaseException, dataset: object, key: object) -> None:
    """Add to an exception which sample it is about."""
    text = f"Raised for the sample with index {key!r} of {type(dataset).__name__}."
    if isinstance(error, IndexError) and isinstance(dataset, Sized):
        text += f" Its len() is {len(dataset)}: does that promise samples it has not?"
    elif isinstance(error, SystemExit):
        text += " It asked the whole process to exit: raise an ordinary exception instead."
    note(error, text)


def explain(error: Exception, batch: object) -> None:
    """Add to an exception what in a batch kept it from going home, unless there was no memory."""
    if isinstance(error, (FeedlineError, MemoryError, OSError)):
        return
    found = culprit_in(batch, "batch")
    note(
        error,
        f"What a worker returns is pickled on its way home, and {found.path}, of type "
        f"{type(found.value).__name__}, cannot be: turn it into tensors, numbers or text in "
        "collate_fn or __getitem__, or use num_workers=0.",
    )
