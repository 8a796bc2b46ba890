"""Memory for one batch, allocated in parts while it is packed.

Guarantees: allocated parts stay where they are until `close`; there is always more. Parts that fit
into the existing memory are written there once; only the others are copied at the end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from feedline.engine.layout import LINE_BYTES, PAGE_BYTES, align

__all__ = ["Space"]

_HEADROOM = 8  # batches that vary in size get an eighth more, so that few of them must move


class Space:
    """Memory of a batch while it is packed.

    Args:
        memory: existing memory, shape (bytes,); may be empty.
    """

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._beyond: list[tuple[int, NDArray[np.uint8]]] = []
        self.used = 0

    def take(self, nbytes: int) -> tuple[int, NDArray[np.uint8]]:
        """Allocate bytes on their own cache lines. Return their offset and the bytes."""
        start = align(self.used, LINE_BYTES)
        self.used = start + nbytes
        if self.used <= len(self._memory):
            return start, self._memory[start : self.used]
        part = np.empty(nbytes, np.uint8)
        self._beyond.append((start, part))
        return start, part

    def where(self, address: int) -> int | None:
        """Offset of an address in the allocated parts; None for other memory."""
        for start, part in [(0, self._memory[: self.used]), *self._beyond]:
            within = address - part.ctypes.data
            if 0 <= within < len(part):
                return start + within
        return None

    @property
    def fits(self) -> bool:
        """True if all parts are in the existing memory."""
        return not self._beyond

    def move(self, make: Callable[[int], NDArray[np.uint8]]) -> NDArray[np.uint8]:
        """Copy all parts into larger memory, allocated by `make(bytes)`."""
        larger = make(align(self.used + self.used // _HEADROOM, PAGE_BYTES))
        first = min(self._beyond[0][0], len(self._memory)) if self._beyond else self.used
        larger[:first] = self._memory[:first]
        for start, part in self._beyond:
            larger[start : start + len(part)] = part
        return larger
