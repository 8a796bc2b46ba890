"""A step's own code, run on pixels: with other parts of it, and other functions that it calls.

Guarantees: what the code draws, it draws itself, from the same generators in the same order; the
step is not changed.

Relies on: the code touching an image only by the parts and functions that were replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

__all__ = ["StandIn", "own_call", "with_globals"]


class StandIn:
    """What a step's own code gets as `self`: the step, but for some of its attributes."""

    def __init__(self, step: Any, parts: Mapping[str, Any]) -> None:
        self.__dict__.update(parts)
        self.__dict__["_step"] = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_step"], name)


def own_call(kind: type) -> FunctionType:
    """The function that is a class's own way of changing an image."""
    for base in kind.__mro__:
        for name in ("forward", "__call__"):
            if name in vars(base):
                found: FunctionType = vars(base)[name]
                return found
    raise TypeError(f"{kind.__name__} cannot be called")


def with_globals(function: FunctionType, others: Mapping[str, Any]) -> FunctionType:
    """The same code, which finds other things under some of its module's names."""
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **others},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
