"""Temporary folders that are gone afterwards."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["temporary_folder"]


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder that goes with all that is in it when the context ends, Ctrl-C or not.

    Args:
        parent: where; None takes the system's folder for temporary files.

    Raises:
        OSError: it cannot be made.
    """
    # What cannot be removed must not cost the results.
    folder = tempfile.TemporaryDirectory(
        prefix="feedline-bench-", dir=parent, ignore_cleanup_errors=True
    )
    try:
        yield Path(folder.name)
    finally:
        with _signals_put_off():
            folder.cleanup()


@contextmanager
def _signals_put_off() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM act only when this is over, as an impatient second one must."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread alone
        return
    noted: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda signum, _: noted.append(signum)) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if noted:
            signal.raise_signal(noted[0])
