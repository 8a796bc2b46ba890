"""Check that library code which compiled pipelines replace is the library's own.

Compiled pipelines replace exact classes of torchvision and timm, and the functions that these call.
They are compiled only if all of this holds at that moment:

- The version of the library lies in `CHECKED_VERSIONS`: from the oldest version that feedline
  supports to the newest one that its tests have run with. With any other version its steps run
  unchanged, and the reason names the version.
- The step's class, and each function of torchvision, timm and Pillow listed in `_FUNCTIONS` and
  `_METHODS`, is defined in the library's own file, without a decorator from elsewhere.

Code that these functions call in turn, for example in torch, is not checked.

Guarantees: nothing is called or imported; nothing is cached, so a later replacement is detected at
the next check, which takes about a millisecond.

Relies on: Python's record of the file that code was compiled from (`co_filename`), which
`functools.wraps` and a false `__module__` do not change.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

__all__ = [
    "CHECKED_VERSIONS",
    "is_original",
    "library_of",
    "replaced_function",
    "replaced_method",
    "unchecked_version",
]

CHECKED_VERSIONS: Mapping[str, tuple[str, str]] = {
    "PIL": ("10.2", "13"),
    "timm": ("1.0", "1.0"),
    "torchvision": ("0.17", "0.29"),
}
"""Oldest and newest version of each library whose steps are compiled; "13" includes 13.x."""

_LIBRARIES = ("PIL", "timm", "torch", "torchvision")
_V2 = "torchvision.transforms.v2"
_FUNCTIONS: Mapping[str, tuple[str, ...] | None] = {
    "PIL.Image": ("blend", "composite", "fromarray", "frombuffer", "merge", "new", "open"),
    "PIL.ImageEnhance": None,
    "PIL.ImageOps": None,
    "timm.data.auto_augment": None,
    "timm.data.transforms": None,
    "torchvision": ("get_image_backend",),
    "torchvision.datasets.folder": ("accimage_loader", "default_loader", "pil_loader"),
    "torchvision.transforms._functional_pil": None,
    "torchvision.transforms._functional_tensor": None,
    "torchvision.transforms.autoaugment": None,
    "torchvision.transforms.functional": None,
    "torchvision.tv_tensors": None,
    f"{_V2}._transform": None,
    f"{_V2}._utils": None,
    f"{_V2}.functional": None,
    f"{_V2}.functional._color": None,
    f"{_V2}.functional._geometry": None,
    f"{_V2}.functional._misc": None,
    f"{_V2}.functional._type_conversion": None,
    f"{_V2}.functional._utils": None,
}
"""Functions by module, checked if it was imported; None for all of the module."""
_METHODS: Mapping[str, tuple[str, ...]] = {
    "PIL.Image.Image": (
        *("convert", "copy", "crop", "filter", "histogram", "load", "point"),
        *("resize", "split", "tobytes", "transform", "transpose"),
    ),
    "PIL.ImageFile.ImageFile": ("load",),
}
"""Methods by class."""
_CALLED = (
    *("__call__", "__getattr__", "_call_impl", "_wrapped_call_impl", "forward"),
    *("__getitem__", "__getitems__", "__iter__", "__len__"),
)
"""Methods of torch's modules and datasets that matter: other packages add methods to them."""
_TYPING = ("types", "typing")


def unchecked_version(library: str) -> str:
    """Reason not to trust the version of a library, without a full stop; "" if there is none.

    Args:
        library: name of its top module; any module without an entry in the table is trusted.
    """
    module = sys.modules.get(library)
    if library not in CHECKED_VERSIONS or module is None:
        return ""
    version = str(getattr(module, "__version__", ""))
    oldest, newest = map(_numbers, CHECKED_VERSIONS[library])
    numbers = _numbers(version)
    if oldest <= numbers and numbers[: len(newest)] <= newest:
        return ""
    name = "Pillow" if library == "PIL" else library
    first, last = CHECKED_VERSIONS[library]
    return f"{name} {version} is not among the versions checked with feedline, {first} to {last}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def replaced_function() -> str:
    """First replaced function of the libraries, e.g. "a.b was replaced by c.d"; "" for none."""
    for name, functions in _FUNCTIONS.items():
        module = sys.modules.get(name)
        for function, value in _members(module, functions):
            if not _may_be_original(value):
                return _replaced(f"{name}.{function}", value)
    enhance = sys.modules.get("PIL.ImageEnhance")
    for _, value in _members(enhance, None):  # classes of pipeline steps are checked with the step
        if isinstance(value, type) and (why := replaced_method(value)):
            return why
    for name, methods in _METHODS.items():
        module_name, _, kind = name.rpartition(".")
        for method, value in _members(getattr(sys.modules.get(module_name), kind, None), methods):
            if not is_original(_untimed(value), f"{kind}.{method}"):
                return _replaced(f"{name}.{method}", value)
    jpeg: Any = sys.modules.get("PIL.JpegImagePlugin")
    if jpeg is not None:
        opener = sys.modules["PIL.Image"].OPEN.get("JPEG", (jpeg.jpeg_factory, None))[0]
        if not is_original(opener, "jpeg_factory"):
            return _replaced("PIL.JpegImagePlugin.jpeg_factory", opener)
    return ""


def _members(owner: Any, names: tuple[str, ...] | None) -> Iterator[tuple[str, Any]]:
    """Attributes of a module or class with these names, or all; nothing if there is no owner."""
    found = {} if owner is None else vars(owner)
    for name in tuple(found) if names is None else names:
        if name in found:
            yield name, found[name]


def replaced_method(kind: type) -> str:
    """First replaced method of a library's class; as `replaced_function`.

    All methods defined in torchvision, timm and Pillow are checked, also those of its bases; of
    torch's classes only those by which a module or a dataset is used.
    """
    for base in kind.__mro__:
        library = library_of(base)
        if library not in _LIBRARIES:
            continue
        for name, member in _members(base, _CALLED if library == "torch" else None):
            where = f"{base.__qualname__}.{name}"
            expected = None if library == "torch" else where
            for method in map(_untimed, _functions_of(member)):
                if not is_original(method, expected):
                    return _replaced(f"{base.__module__}.{where}", method)
    return ""


def library_of(thing: Any) -> str:
    """Top module of a class or function, e.g. "torchvision"."""
    return str(thing.__module__).partition(".")[0]


def is_original(function: Any, qualified_name: str | None = None) -> bool:
    """Return True if a function is a library's own, from the file of its module.

    Args:
        function: any object.
        qualified_name: its name within its module; None for any.
    """
    if type(function) is not FunctionType:
        return False
    code, home = function.__code__, function.__globals__
    module = sys.modules.get(home.get("__name__", ""))
    if module is None or vars(module) is not home or code.co_filename != home.get("__file__"):
        return False
    top = module.__name__.partition(".")[0]
    if top not in _LIBRARIES and top not in sys.stdlib_module_names:
        return False
    if "__wrapped__" in vars(function):
        return is_original(vars(function)["__wrapped__"], qualified_name)
    return qualified_name is None or function.__qualname__ == qualified_name


def _may_be_original(value: Any) -> bool:
    """Return True unless a module's attribute is a function or class from elsewhere."""
    if type(value) is FunctionType:
        return is_original(value)
    if isinstance(value, type):
        top = library_of(value)
        return top in _LIBRARIES or top in sys.stdlib_module_names
    if type(value) in (BuiltinFunctionType, ModuleType) or not callable(value):
        return True
    top = library_of(type(value))
    return top in _TYPING or top in _LIBRARIES


def _functions_of(member: Any) -> list[Any]:
    """Functions that run when a class member is called, read or set; none for plain values."""
    if isinstance(member, (staticmethod, classmethod)):
        return [member.__func__]
    if isinstance(member, property):
        return [each for each in (member.fget, member.fset) if each is not None]
    return [member] if callable(member) and not isinstance(member, type) else []


def _untimed(function: Any) -> Any:
    """Function inside a timer that feedline added in workers; otherwise the function itself."""
    timed: Any = sys.modules.get("feedline.trace.transform_timing")
    if timed is not None and getattr(function, "__globals__", None) is vars(timed):
        return vars(function).get("__wrapped__", function)
    return function


def _replaced(original: str, by: Any) -> str:
    if type(by) is FunctionType:  # its code says where it is from: __module__ may have been copied
        name = f"{by.__globals__.get('__name__')}.{by.__code__.co_name}"
    elif isinstance(by, type):
        name = f"{by.__module__}.{by.__qualname__}"
    else:
        name = f"an object of {type(by).__module__}.{type(by).__qualname__}"
    return f"{original} was replaced by {name}"
