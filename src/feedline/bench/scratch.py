"""Room for files that must be gone afterwards."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from feedline.bench.signals import put_off

__all__ = ["temporary_folder"]

_PREFIX = "feedline-bench-"


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder that goes with all that is in it when the context ends, Ctrl-C or not.

    Args:
        parent: where; None takes the system's folder for temporary files.

    Raises:
        OSError: it cannot be made.
    """
    # What cannot be removed must not cost the results.
    folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        with put_off():
            folder.cleanup()
