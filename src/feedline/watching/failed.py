"""What becomes of a failure of a record's own: it ends no training."""

from __future__ import annotations

import logging

from feedline.errors import FeedlineError
from feedline.trace.recorder import Recorder

__all__ = ["failed"]

_log = logging.getLogger("feedline")


def failed(
    recorder: Recorder, what: str, error: Exception, *, then: str = "the training goes on"
) -> None:
    """Note that something about a record went wrong, and log it in a line; its stack at debug.

    Args:
        recorder: keeps the note.
        what: is over.
        error: what went wrong.
        then: what comes of it.
    """
    expected = isinstance(error, FeedlineError | OSError)  # what it says is meant to be read
    said = f"{what}: {error}" if expected else f"{what}: {type(error).__name__}: {error}"
    recorder.note(said)
    _log.warning("%s; %s", said, then)
    _log.debug("where that failed", exc_info=error)
