"""What becomes of a failure of a record's own: it ends no training."""

from __future__ import annotations

import logging

from feedline.trace.recorder import Recorder

__all__ = ["failed"]

_log = logging.getLogger("feedline")


def failed(recorder: Recorder, what: str, error: Exception) -> None:
    """Log and note that something about a record went wrong."""
    said = f"{what}: {type(error).__name__}: {error}"
    recorder.note(said)
    _log.warning("%s; the loop goes on", said, exc_info=error)
