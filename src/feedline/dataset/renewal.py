"""Whether a dataset is still what its workers have.

Workers live on from epoch to epoch with the copy of the dataset that they began with. A user may
change theirs between two epochs, and must not get batches of the old one. So what went to the
workers is noted as a digest of its pickle, and compared.
"""

from __future__ import annotations

import hashlib
import pickle
import time
import zlib
from functools import partial
from math import inf
from typing import Any

import torch

from feedline.dataset.plain import is_plain

__all__ = ["digest"]

_STRETCH_BYTES = 8 << 20  # of a large array at a time, so that the clock is looked at


def digest(*values: object, within_s: float = inf) -> bytes | None:
    """A digest of some values; None where they do not pickle, or not within so many seconds.

    Equal digests mean equal contents. Different ones may not: a pickle has more than one form.
    """
    sink = _Sink(time.perf_counter() + within_s)
    try:
        _Digester(sink).dump(values)
    except Exception:  # a pickle calls the user's own code: anything may come
        return None
    return sink.hash.digest()


class _Sink:
    """Takes a pickle and keeps its hash only."""

    def __init__(self, deadline_s: float) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._deadline_s = deadline_s

    def write(self, data: Any) -> int:
        if time.perf_counter() > self._deadline_s:
            raise TimeoutError
        self.hash.update(data)
        return len(data)


class _Digester(pickle.Pickler):
    def __init__(self, sink: _Sink) -> None:
        # No method of its own: the cycle would keep all it has pickled until it is collected.
        super().__init__(sink, protocol=5, buffer_callback=partial(_sum_up, sink))

    def reducer_override(self, obj: object) -> Any:
        """Plain tensors in the same way; torch would copy each of them."""
        if type(obj) is torch.Tensor and is_plain(obj) and obj.is_contiguous():
            data = obj.detach().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (str(obj.dtype), tuple(obj.shape), pickle.PickleBuffer(data.data))
        return NotImplemented


def _tensor(dtype: str, shape: tuple[int, ...], data: object) -> None:
    """Stands in a digest for a tensor; never called."""


def _sum_up(sink: _Sink, buffer: pickle.PickleBuffer) -> bool:
    """Large arrays: a checksum, at some gigabytes a second, without a copy."""
    data = buffer.raw()
    for start in range(0, max(1, data.nbytes), _STRETCH_BYTES):
        check = zlib.crc32(data[start : start + _STRETCH_BYTES])
        sink.write(b"%d %d" % (data.nbytes, check))
    return False
