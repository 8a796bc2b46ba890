"""Memory whose neighbours may not be touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np


class Fenced:
    """Memory whose neighbours on both sides end the process that touches them."""

    def __init__(self, size_bytes: int) -> None:
        page = mmap.PAGESIZE
        pages = -(-size_bytes // page)
        self._map = mmap.mmap(-1, (pages + 2) * page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for fence in (start, start + (pages + 1) * page):
            assert libc.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(page), 0) == 0
        inside = np.frombuffer(self._map, np.uint8)[page:-page]
        self.at_start, self.at_end = inside[:size_bytes], inside[len(inside) - size_bytes :]
