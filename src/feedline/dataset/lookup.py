"""Datasets that only look rows up in tables: `return self.images[i], self.labels[i]`.

How it is told: the code of `__getitem__` runs once on stand-ins for the dataset and the index, with
no global, builtin, loop or handler of exceptions in its reach. The stand-ins can be handed on and
put into tuples, lists and dicts, a table's can be indexed by the index's, and anything else that is
done to one of them is an error. Code that comes through gives the same for every index: so and so
many rows, in such and such a structure. It cannot have drawn a number, nor left a trace.

Relies on the tables: `self.labels[i] is None` goes unnoticed. So every table that was looked at is
in what is given, and whoever takes it must find rows of numbers there, of which none is None.
"""

from __future__ import annotations

import dis
import inspect
import sys
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FunctionType, GetSetDescriptorType
from typing import Any

import numpy as np
import torch

__all__ = ["Index", "Row", "looked_up", "table_of"]

_SETTINGS = (type(None), bool, int, float, str)
"""Attributes that code may look at as they are, to decide by: they cannot change within it."""

_NOT_SEEN = ("SETUP_", "MATCH_", "STORE_GLOBAL", "DELETE_GLOBAL")
"""How operations begin that a stand-in would not notice: exceptions caught, patterns that ask for
its type, globals."""

_NO_PLAIN_METHOD = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_UNSET: Any = object()


class _NotToldError(Exception):
    """What the code does cannot be told from stand-ins."""


class _StandIn:
    """Can be handed on, and no more."""

    __slots__ = ("_of",)
    _of: Any

    def __init__(self, of: Any) -> None:
        object.__setattr__(self, "_of", of)

    def _not_told(self, *_: Any) -> Any:
        raise _NotToldError

    # Those that any object has; with all others Python itself finds that there are none.
    __getattribute__ = __setattr__ = __delattr__ = _not_told
    __bool__ = __eq__ = __ne__ = __repr__ = __str__ = __format__ = _not_told
    __hash__ = None  # type: ignore[assignment]


class Row(_StandIn):
    """Stands for one row of a table."""

    __slots__ = ()


class Index(_StandIn):
    """Stands for the index that is asked for."""

    __slots__ = ()


class _Table(_StandIn):
    __slots__ = ()

    def __getitem__(self, index: object) -> Row:
        if type(index) is not Index:
            raise _NotToldError
        table, looked_at = table_of(self)
        looked_at.add(id(table))
        return Row(table)


class _Dataset(_StandIn):
    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        dataset, looked_at = table_of(self)
        # As `object` finds attributes; what a class does on its own account is not told.
        of_class = _of_class(type(dataset), name)
        if hasattr(type(of_class), "__set__") or hasattr(type(of_class), "__delete__"):
            raise _NotToldError
        own = vars(dataset)
        if type(own) is not dict:
            raise _NotToldError
        value = own.get(name, of_class)
        if type(value) in _SETTINGS:
            return value
        if type(value) in (torch.Tensor, np.ndarray, list) and value is not of_class:
            return _Table((value, looked_at))
        raise _NotToldError


def table_of(stand_in: _StandIn) -> Any:
    """What a stand-in stands for; of a row, the table that it is of."""
    return object.__getattribute__(stand_in, "_of")


def looked_up(dataset: object) -> Any:
    """What `dataset[index]` gives, in terms of rows.

    Returns:
        A Row or Index, or tuples, lists and dicts of them; None where that cannot be told, where a
        batch of indices is asked for at once (`__getitems__`), or where a debugger looks on: it
        shall find what it knows.
    """
    kind = type(dataset)
    function = _of_class(kind, "__getitem__")
    if type(function) is not FunctionType or not _is_plain(function.__code__):
        return None
    if not _is_ordinary(kind) or _debugged():
        return None
    looked_at: set[int] = set()
    alone = FunctionType(function.__code__, {"__builtins__": {}})
    try:
        if _of_class(kind, "__getitems__") is not _UNSET or "__getitems__" in vars(dataset):
            return None
        found = alone(_Dataset((dataset, looked_at)), Index(None))
        rows = list(_leaves(found))
    except Exception:  # whatever the code came to, away from all that it needs
        return None
    return found if {id(table_of(row)) for row in rows} >= looked_at else None


def _of_class(kind: type, name: str) -> Any:
    """A class's attribute as it was written; `_UNSET` where there is none.

    `inspect.getattr_static` takes 1 to 5 us for it, this 0.2, and each batch asks for several.
    """
    for each in kind.__mro__:
        if name in each.__dict__:
            return each.__dict__[name]
    return _UNSET


def _is_ordinary(kind: type) -> bool:
    """Whether attributes of its instances are found as those of any object are."""
    return (
        _of_class(kind, "__getattribute__") is object.__getattribute__
        and _of_class(kind, "__getattr__") is _UNSET  # what it answers would have to be asked for
        and type(_of_class(kind, "__dict__")) is GetSetDescriptorType
    )


def _debugged() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    by_events = monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
    return by_events or sys.gettrace() is not None


def _goes_unseen(step: dis.Instruction) -> bool:
    """Whether stand-ins would not notice it, or might never come out of it: a jump back."""
    back = step.opcode in _JUMPS and step.argval <= step.offset
    return back or step.opname.startswith(_NOT_SEEN)


def _compares_identity(before: dis.Instruction, step: dis.Instruction) -> bool:
    """Whether it is an `is` that stand-ins would answer wrongly: `index is self.first`.

    No index or row of numbers is None, True or False, and no stand-in is.
    """
    constant = before.opname == "LOAD_CONST" and before.argval in (None, True, False)
    return step.opname == "IS_OP" and not constant


@lru_cache(maxsize=64)
def _is_plain(code: CodeType) -> bool:
    """Whether it is a method of one index, with nothing around it, that neither catches exceptions
    nor goes back, asks what is what, or names what Python keeps between underscores.
    """
    steps = list(dis.get_instructions(code))
    return (
        code.co_argcount == 2
        and not code.co_kwonlyargcount
        and not code.co_freevars
        and not code.co_flags & _NO_PLAIN_METHOD
        and not getattr(code, "co_exceptiontable", b"")
        and not any(type(constant) is CodeType for constant in code.co_consts)
        and not any(name.startswith("__") for name in code.co_names)
        and not any(map(_goes_unseen, steps))
        and not any(_compares_identity(before, step) for before, step in pairwise(steps))
    )


def _leaves(found: Any) -> Any:
    """The rows in what was given.

    Raises:
        _NotToldError: there is something else in it, or nothing.
    """
    if type(found) in (Row, Index):
        yield found
        return
    if type(found) is dict:
        found = tuple(found.values())
    if type(found) not in (tuple, list) or not found:
        raise _NotToldError
    for part in found:
        yield from _leaves(part)
