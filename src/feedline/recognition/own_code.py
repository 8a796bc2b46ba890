"""Run a step's own code on pixels, with other attributes and other called functions.

Guarantees: the code draws from the same generators in the same order; the step is not changed.

Relies on: the code accessing an image only through the replaced attributes and functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

__all__ = ["StandIn", "own_call", "with_globals"]


class StandIn:
    """The `self` of a step's own code: the step, except for some attributes."""

    def __init__(self, step: Any, parts: Mapping[str, Any]) -> None:
        self.__dict__.update(parts)
        self.__dict__["_step"] = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_step"], name)


def own_call(kind: type) -> FunctionType:
    """Function by which a class transforms an image."""
    for base in kind.__mro__:
        for name in ("forward", "__call__"):
            if name in vars(base):
                found: FunctionType = vars(base)[name]
                return found
    raise TypeError(f"{kind.__name__} is not callable")


def with_globals(function: FunctionType, others: Mapping[str, Any]) -> FunctionType:
    """The same code with other values for some of its module's names."""
    made = FunctionType(
        function.__code__,
        {**function.__globals__, **others},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
