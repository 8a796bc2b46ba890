"""Flag of this process: it is reading from storage.

A worker that stays inside a read waits for a disk or a server, which a restart of the worker does
not repair. The flag is in memory that the training process can read.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["reading"]


class Reading:
    """Context manager around a read from storage. Does not nest."""

    def __init__(self) -> None:
        self._flag: NDArray[np.int64] = np.zeros(1, np.int64)

    def show_in(self, flag: NDArray[np.int64]) -> None:
        """Store the flag in other memory, shape (1,), int64."""
        self._flag = flag

    def __enter__(self) -> None:
        self._flag[0] = 1

    def __exit__(self, *_: object) -> None:
        self._flag[0] = 0


reading = Reading()
