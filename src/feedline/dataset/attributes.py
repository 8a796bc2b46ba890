"""The parts of an object: attributes, entries and what a function has bound, read passively.

Guarantees: no code of the user's runs: no property, no `__getattr__`, no `__iter__`, no metaclass.
Attributes are read from `__dict__`, from slots and from the classes themselves. What Python itself
does not store in these places, such as the fields of an object of a C extension, is not seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch

__all__ = ["attributes", "class_of_any", "parts"]

MAX_ENTRIES = 1000
"""A container with more of them holds data, not transforms."""

_OPAQUE = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    np.ndarray,
    np.generic,
    torch.Tensor,
    type,
    ModuleType,
    CodeType,
    FrameType,
    GeneratorType,
    type(None),
)
_NO_VALUES = {FunctionType, property, staticmethod, classmethod, GetSetDescriptorType}
"""What a class has besides attributes that its objects share."""
_USERS = 1 << 9
"""Of the flags of a class: it was not compiled in. CPython's Py_TPFLAGS_HEAPTYPE."""

_bases = type.__dict__["__mro__"].__get__  # a metaclass may have another
_members = type.__dict__["__dict__"].__get__
_flags = type.__dict__["__flags__"].__get__


def class_of_any(thing: object, kinds: tuple[type, ...]) -> bool:
    """Whether a thing's class is one of these or derived from one, whatever it claims to be."""
    return any(base in kinds for base in _bases(type(thing)))


def parts(thing: Any) -> Iterator[Any]:
    """The parts of a thing, in a fixed order."""
    if class_of_any(thing, _OPAQUE):
        return
    if type(thing) is FunctionType:
        yield from _bound(thing)
        return
    if type(thing) is BuiltinFunctionType:  # a method of an object that is written in C
        yield thing.__self__
        return
    for kind in (list, tuple, dict):
        if class_of_any(thing, (kind,)) and kind.__len__(thing) <= MAX_ENTRIES:
            yield from list(dict.values(thing) if kind is dict else kind.__iter__(thing))
    if type(thing) not in (list, tuple, dict):
        yield from (part for _, part in attributes(thing))


def _bound(function: FunctionType) -> Iterator[Any]:
    """What a function has of its own; not the globals it names, which other code shares."""
    cells: tuple[CellType, ...] = function.__closure__ or ()
    for cell in cells:
        with contextlib.suppress(ValueError):  # it is still empty
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from list(function.__dict__.values())


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """The attributes of a thing, by name: its own, its slots, and those of a user's classes."""
    bases = _bases(type(thing))
    own: Any = next((of["__dict__"] for of in map(_members, bases) if "__dict__" in of), None)
    known: dict[str, Any] = {}
    if type(own) is GetSetDescriptorType:  # else it is a property of the user's
        known = own.__get__(thing)
        yield from list(known.items())
    for base in bases:
        users = _flags(base) & _USERS
        for name, member in list(_members(base).items()):
            if name in known:
                continue
            if type(member) is MemberDescriptorType:  # a slot, or what a partial holds
                try:
                    yield name, member.__get__(thing)
                except AttributeError:  # it was never set
                    continue
            elif users and type(member) not in _NO_VALUES and not name.startswith("__"):
                yield name, member
