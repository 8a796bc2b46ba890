"""Check whether a function or class is the library's own, as in its files.

Guarantees: a function counts as a library's own only if its code is that of the library's file,
under the same name, and nothing is wrapped around it. Nothing is called.

Relies on: Python's record of where code was compiled (`co_filename`, `__globals__`), which
`functools.wraps` and a false `__module__` do not change; types in C that cannot be changed.
"""

from __future__ import annotations

import dis
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

__all__ = [
    "can_change",
    "functions_of",
    "is_method",
    "is_own",
    "may_stand_for",
    "named",
    "uncached",
]

_LIBRARIES = ("torchvision", "timm", "torch", "PIL", "numpy")
_TYPING = ("typing", "types", "collections.abc")
_IN_C = (MethodDescriptorType, GetSetDescriptorType)
_CACHED = type(lru_cache(len))
_IMMUTABLE, _OF_PYTHON = 1 << 8, 1 << 9  # of a class's __flags__

# Functions that a library itself has under another name than they were defined with.
_ALIASES = frozenset(
    (
        *(("hflip", "horizontal_flip"), ("vflip", "vertical_flip"), ("torch_pad", "pad")),
        *(("to_grayscale", "rgb_to_grayscale"), ("_pad_image_pil", "pad")),
        *(("_crop_image_pil", "crop"), ("wrap", "_fn")),
        ("__compute_resized_output_size", "_compute_resized_output_size"),
    )
)

_ALIKE = {
    ("PIL.Image.Image", "size"): "fastai.vision.core",
    ("torch.Tensor", "as_subclass"): "fastai.torch_core",
}
"""Methods that another package replaces when it is imported, and the module of the replacement.

They change no pixel: `size` gives the same two numbers in a subclass of tuple, and `as_subclass`
gives the same tensor and also copies attributes to it."""


def named(thing: object) -> str:
    """Name a function or class by its module and name, anything else by its type."""
    name = getattr(thing, "__qualname__", None)
    if type(thing) is FunctionType:
        # Its code says where it is from; __module__ and __qualname__ may have been copied.
        code = thing.__code__
        return f"{thing.__globals__.get('__name__')}.{getattr(code, 'co_qualname', code.co_name)}"
    if isinstance(name, str):
        return f"{getattr(thing, '__module__', None) or 'builtins'}.{name}"
    return f"an object of {named(type(thing))}"


def is_own(function: Any, name: str | None = None) -> bool:
    """Return True if a function is the unwrapped code of its module's file.

    Args:
        function: any object.
        name: name of its definition.
    """
    if type(function) is not FunctionType:
        return False
    own = function.__globals__
    home = own.get("__name__", "")
    if not _is_a_librarys(home) or not _is_of(function, home):
        return False
    code = function.__code__
    if "__wrapped__" in vars(function):
        inner = vars(function)["__wrapped__"]
        if home == "torch._tensor":
            # The operators of tensors, some of which are other methods in C.
            return isinstance(inner, _IN_C) or is_own(inner)
        # torchvision.tv_tensors.wrap is one that torch.compile is told to leave alone.
        return name == "wrap" and is_own(inner, name)
    return name is None or code.co_name == name or (name, code.co_name) in _ALIASES


def _is_of(function: FunctionType, home: str) -> bool:
    """Return True if a function's code is from a module's file."""
    module = sys.modules.get(home)
    if module is None or vars(module) is not function.__globals__:
        return False
    return function.__code__.co_filename == function.__globals__.get("__file__")


def can_change(kind: type) -> bool:
    """Return True if a class's methods can be replaced; those of a class in C cannot."""
    return kind.__flags__ & (_OF_PYTHON | _IMMUTABLE) == _OF_PYTHON


def uncached(function: Any) -> Any:
    """Function wrapped by `functools.lru_cache`; any other function unchanged."""
    return function.__wrapped__ if type(function) is _CACHED else function


def may_stand_for(owner: str, name: str, value: Any) -> bool:
    """Return True if the value of a module's name may be the library's.

    Args:
        owner: the module's name.
        name: name in the module, or its import alias.
        value: current value.
    """
    value = uncached(value)
    kind = type(value)
    if kind is FunctionType:
        if is_own(value, name):
            return True
        body = _body_of(owner, "") if is_own(value) and _top(owner) == "PIL" else None
        return body is not None and _has_as(body, name, value.__code__.co_name)
    if isinstance(value, type):
        module = sys.modules.get(value.__module__)
        known = getattr(module, value.__name__, None) is value or value is FunctionType
        return known and _is_a_librarys(value.__module__)
    if kind is MethodType:  # the functions of the module random
        return _top(type(value.__self__).__module__) == _top(owner) and is_own(value.__func__, name)
    if kind is MethodDescriptorType:  # fastai adds one to the module torch
        return bool(value.__name__ == name and _is_a_librarys(value.__objclass__.__module__))
    if kind is BuiltinFunctionType:
        home = value.__module__ or type(value.__self__).__module__
        return bool(value.__name__ == name and _is_a_librarys(home))
    if callable(value) and _top(kind.__module__) == "numpy":  # its functions are objects
        return getattr(value, "__name__", None) == name
    return kind is not ModuleType and (not callable(value) or kind.__module__ in _TYPING)


def functions_of(member: Any) -> Iterator[Any]:
    """Functions that run when a class member is called, read or set; empty for plain values."""
    if isinstance(member, (staticmethod, classmethod)):
        yield member.__func__
    elif type(member) is property:
        yield from (each for each in (member.fget, member.fset) if each is not None)
    elif type(member) is cached_property:
        yield member.func
    elif callable(member) and not isinstance(member, type):
        yield uncached(member)


def is_method(base: type, name: str, method: Any) -> bool:
    """Return True if a method is the class's original, or unknown to the library's code.

    Other packages add methods to library classes, which the libraries cannot call.

    Args:
        base: class of the method.
        name: name of the member.
        method: one of its `functions_of`.
    """
    if is_own(method, name) or _is_alike(base, name, method):
        return True
    if type(method) in _IN_C:
        # A method of torch's tensors, of whose operators some are others in C.
        return method.__name__ == name or name.startswith("__")
    code = getattr(method, "__code__", None)
    if code is not None and code.co_filename == "<string>":
        return hasattr(base, "_fields") or "__dataclass_fields__" in vars(base)
    body = _body_of(base.__module__, base.__name__)
    if body is None:
        return False
    if is_own(method):
        own = method.__code__.co_name
        if own == "<lambda>" or name == f"_{base.__name__.lstrip('_')}{own}":
            return method.__code__ in body.co_consts
        maker, _, inner = method.__qualname__.partition(".<locals>.")
        if inner:  # one of several that a function of the module makes
            return maker.rpartition(".")[2] in body.co_names and name in body.co_names
        return _has_as(body, name, own)
    inherited = any(name in vars(other) for other in base.__mro__[1:])
    return name not in body.co_names and not inherited and not name.startswith("__")


def _is_alike(base: type, name: str, method: Any) -> bool:
    """Return True if a method is one of `_ALIKE`, as in its package's file."""
    home = _ALIKE.get((f"{base.__module__}.{base.__qualname__}", name))
    return type(method) is FunctionType and home is not None and _is_of(method, home)


@cache
def _body_of(module: str, kind: str) -> CodeType | None:
    """Statements of a class, or of a module for "", in its file; None if not found."""
    try:
        spec = importlib.util.find_spec(module)
        loader: Any = None if spec is None else spec.loader
        code: CodeType = loader.get_code(module)
    except Exception:
        return None
    bodies = (each for each in code.co_consts if isinstance(each, CodeType))
    return next((each for each in bodies if each.co_name == kind), None) if kind else code


@cache
def _has_as(body: CodeType, name: str, own: str) -> bool:
    """Return True if a body contains `name = own`, or `import own as name`."""
    return any(
        after.opname == "STORE_NAME" and after.argval == name and before.argval == own
        for before, after in pairwise(dis.get_instructions(body))
    )


def _is_a_librarys(module: str) -> bool:
    """Return True if a module belongs to a known library or to Python."""
    top = _top(module)
    return top in _LIBRARIES or top in sys.stdlib_module_names


def _top(module: str) -> str:
    return module.partition(".")[0]
