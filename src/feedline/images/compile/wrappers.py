"""Transforms in classes of users that only call another transform, such as torchvision's presets.

Guarantees: no user code runs. The byte code of `__call__` must be that of `return self.name(image)`
or of the same with other arguments, and the attribute must be the object's own, so the call can do
nothing else.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, cast


def _one(self: Any, image: Any) -> Any:
    return self.transform(image)


def _two(self: Any, image: Any, target: Any) -> Any:
    return self.transform(image, target)


def _any(self: Any, *inputs: Any) -> Any:
    return self.transform(*inputs)


def _any_named(self: Any, *inputs: Any, **named: Any) -> Any:
    return self.transform(*inputs, **named)


def _form(function: FunctionType) -> tuple[object, ...]:
    """Parts of a function that decide what it does, except the names that it uses."""
    code = function.__code__
    variadic = code.co_flags & 0x0C  # *inputs, **named
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, variadic
    return code.co_code, len(code.co_names), arguments, code.co_freevars, function.__defaults__


_FORMS = {
    inputs: {_form(cast(FunctionType, each)) for each in (function, _any, _any_named)}
    for inputs, function in ((1, _one), (2, _two))
}
"""Forms of `__call__` by the number of its inputs."""


def wrapped_transform(thing: Any, inputs: int = 1) -> Any:
    """Transform that an object only calls, with this number of inputs; None if it may do more."""
    kind = type(thing)
    call = _member(kind, "__call__")
    if type(call) is not FunctionType or _form(call) not in _FORMS[inputs]:
        return None
    name = call.__code__.co_names[0]
    own_lookup = _member(kind, "__getattribute__") is not object.__getattribute__
    if own_lookup or any(name in vars(base) for base in kind.__mro__):
        return None
    return getattr(thing, "__dict__", {}).get(name)


def _member(kind: type, name: str) -> Any:
    """Member of a class or its bases, without running code; None if it has none."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
