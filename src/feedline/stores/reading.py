"""Flag of this process: it reads from storage now.

A worker that stays inside a read waits for a disk or a server, which no restart of the worker
repairs. The flag lies where the training process can see it.
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
        """Keep the flag in other memory, shape (1,), int64."""
        self._flag = flag

    def __enter__(self) -> None:
        self._flag[0] = 1

    def __exit__(self, *_: object) -> None:
        self._flag[0] = 0


reading = Reading()
