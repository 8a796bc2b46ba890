"""Whether a dataset is still what its workers have.

Workers live on from epoch to epoch with the copy of the dataset that they began with. A user may
change theirs between two epochs, and must not get batches of the old one. So what went to the
workers is noted as a digest of its pickle, and compared. A pickle only names classes and functions:
those of the user's own modules are summed up too, with the attributes and globals they run with
(`code`). Where these change while an iteration runs, as a global that counts does, new workers
begin with each: as torch has them.
"""

from __future__ import annotations

import copyreg
import hashlib
import pickle
import time
import zlib
from functools import lru_cache, partial
from math import inf
from types import FunctionType
from typing import Any

import torch

from feedline.dataset.code import is_class, is_module, is_users, name_of, parts
from feedline.dataset.plain import is_plain

__all__ = ["digest"]

_STRETCH_BYTES = 8 << 20  # of a large array at a time, so that the clock is looked at
_Caching = type(lru_cache(is_class))


def digest(*values: object, within_s: float = inf) -> bytes | None:
    """A digest of some values; None where they do not pickle, or not within so many seconds.

    Equal digests mean equal contents, and that the user's code runs with what it did. Of what that
    holds only what can be pickled counts: a lock is nothing to begin workers anew for. Different
    digests may not mean a change: a pickle has more than one form.
    """
    sink = _Sink(time.perf_counter() + within_s)
    found = _Found()
    try:
        _Digester(sink, found).dump(values)
        _sum_up_code(sink, found)
    except Exception:  # a pickle calls the user's own code: anything may come
        return None
    return sink.hash.digest()


class _Late(Exception):
    """It takes too long."""


class _Sink:
    """Takes a pickle and keeps its hash only."""

    def __init__(self, deadline_s: float) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._deadline_s = deadline_s

    def write(self, data: Any) -> int:
        if time.perf_counter() > self._deadline_s:
            raise _Late
        self.hash.update(data)
        return len(data)


class _Found:
    """Classes and functions that were come across, each once."""

    def __init__(self) -> None:
        self.code: list[object] = []
        self._places: dict[int, int] = {}

    def note(self, code: object) -> int | None:
        """Its number; None for a class that is not the user's: its name is all there is to it."""
        if is_class(code) and not is_users(code):
            return None
        place = self._places.setdefault(id(code), len(self.code))
        if place == len(self.code):
            self.code.append(code)
        return place


def _sum_up_code(sink: _Sink, found: _Found) -> None:
    """Each by itself, not one within the other: code goes round in circles, and deep."""
    digester = _CodeDigester(sink, found)
    for code in found.code:  # grows meanwhile
        for part in parts(code):
            try:
                digester.dump(part)
            except _Late:
                raise
            except Exception:
                digester.clear_memo()  # of what was not written to its end
                sink.write(b"left out")


class _Digester(pickle.Pickler):
    def __init__(self, sink: _Sink, found: _Found) -> None:
        # No method of its own: the cycle would keep all it has pickled until it is collected.
        super().__init__(sink, protocol=5, buffer_callback=partial(_sum_up, sink))
        self._found = found

    def reducer_override(self, obj: Any) -> Any:
        """Plain tensors in the same way; torch would copy each of them."""
        kind = type(obj)
        if kind is torch.Tensor and is_plain(obj) and obj.is_contiguous():
            data = obj.detach().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (str(obj.dtype), tuple(obj.shape), pickle.PickleBuffer(data.data))
        if kind is FunctionType or is_class(obj):
            self._found.note(obj)
        elif kind is _Caching:
            self._found.note(obj.__wrapped__)
        return NotImplemented


class _CodeDigester(_Digester):
    """Pickles whatever code runs with, and only names what cannot be pickled."""

    def reducer_override(self, obj: Any) -> Any:
        """Never fails of itself, and never looks for an object by its name."""
        if obj is _named:
            return NotImplemented
        kind = type(obj)
        if kind is FunctionType or is_class(obj):
            return _named, (name_of(obj), self._found.note(obj))
        if kind is _Caching:
            return _named, (obj.__wrapped__,)
        if kind is staticmethod or kind is classmethod:
            return _named, (kind.__name__, obj.__func__)
        if kind is property:
            return _named, (obj.fget, obj.fset, obj.fdel)
        if is_module(obj):
            return _named, (obj.__name__,)
        if (reduced := super().reducer_override(obj)) is not NotImplemented:
            return reduced
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = obj.__reduce_ex__(5) if reduce is None else reduce(obj)
        except Exception:  # the user's own code: anything may come
            return _named, name_of(kind)
        return (_named, (reduced,)) if isinstance(reduced, str) else reduced


def _named(*what: object) -> None:
    """Stands in a digest for what is told of an object; never called."""


def _tensor(dtype: str, shape: tuple[int, ...], data: object) -> None:
    """Stands in a digest for a tensor; never called."""


def _sum_up(sink: _Sink, buffer: pickle.PickleBuffer) -> bool:
    """Large arrays: a checksum, at some gigabytes a second, without a copy."""
    data = buffer.raw()
    for start in range(0, max(1, data.nbytes), _STRETCH_BYTES):
        check = zlib.crc32(data[start : start + _STRETCH_BYTES])
        sink.write(b"%d %d" % (data.nbytes, check))
    return False
