"""Datasets that only look rows up in tables: `return self.images[i], self.labels[i]`.

How it is told: the code of `__getitem__` runs once on stand-ins for the dataset and the index, with
no global, builtin or handler of exceptions in its reach. The stand-ins can be handed on and put
into tuples, lists and dicts, a table's can be indexed by the index's, and anything else that is
done to one of them is an error. Code that comes through gives the same for every index: so and so
many rows, in such and such a structure. It cannot have drawn a number, nor left a trace.
"""

from __future__ import annotations

import dis
import inspect
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch

__all__ = ["Row", "looked_up"]

_SETTINGS = (type(None), bool, int, float, str)
"""Attributes that code may look at as they are, to decide by: they cannot change within it."""

_NOT_SEEN = {
    code
    for name, code in dis.opmap.items()
    # What a stand-in would not notice: exceptions caught, and patterns that ask for its type.
    if name.startswith(("SETUP_", "MATCH_"))
}
_NO_PLAIN_METHOD = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)
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


class _Index(_StandIn):
    __slots__ = ()


class _Table(_StandIn):
    __slots__ = ()

    def __getitem__(self, index: object) -> Row:
        if type(index) is not _Index:
            raise _NotToldError
        return Row(table_of(self))


class _Dataset(_StandIn):
    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        dataset = table_of(self)
        # As `object` finds attributes; what a class does on its own account is not told.
        of_class = next(
            (vars(kind)[name] for kind in type(dataset).__mro__ if name in vars(kind)), _UNSET
        )
        if hasattr(type(of_class), "__set__") or hasattr(type(of_class), "__delete__"):
            raise _NotToldError
        value = vars(dataset).get(name, of_class)
        if type(value) in _SETTINGS:
            return value
        if type(value) in (torch.Tensor, np.ndarray, list) and value is not of_class:
            return _Table(value)
        raise _NotToldError


def table_of(stand_in: Row | _StandIn) -> Any:
    """What a stand-in stands for; of a row, the table that it is of."""
    return object.__getattribute__(stand_in, "_of")


def looked_up(dataset: object) -> Any:
    """What `dataset[index]` gives, in terms of rows.

    Returns:
        A Row, or tuples, lists and dicts of them; None where that cannot be told, or where a batch
        of indices is asked for at once (`__getitems__`).
    """
    kind = type(dataset)
    function = getattr(kind, "__getitem__", None)
    if type(function) is not FunctionType or not _is_plain(function.__code__):
        return None
    if kind.__getattribute__ is not object.__getattribute__ or hasattr(kind, "__getattr__"):
        return None  # else what it answers would have to be asked for
    if hasattr(dataset, "__getitems__"):
        return None
    alone = FunctionType(function.__code__, {"__builtins__": {}})
    try:
        found = alone(_Dataset(dataset), _Index(None))
        return found if _is_rows(found) and set(alone.__globals__) == {"__builtins__"} else None
    except Exception:  # whatever the code came to, away from all that it needs
        return None


@lru_cache(maxsize=64)
def _is_plain(code: CodeType) -> bool:
    """Whether it is a method of one index, with nothing around it, that catches no exception."""
    return (
        code.co_argcount == 2
        and not code.co_kwonlyargcount
        and not code.co_freevars
        and not code.co_flags & _NO_PLAIN_METHOD
        and not getattr(code, "co_exceptiontable", b"")
        and not any(type(constant) is CodeType for constant in code.co_consts)
        and _NOT_SEEN.isdisjoint(code.co_code[::2])
    )


def _is_rows(found: Any) -> bool:
    if type(found) is Row:
        return True
    if type(found) is dict:
        found = list(found.values())
    return type(found) in (tuple, list) and bool(found) and all(map(_is_rows, found))
