"""Trust in library code: versions that were checked, and functions that are the library's own.

A pipeline is compiled only if the versions of its libraries lie in `CHECKED_VERSIONS`, and if the
classes of its steps and the functions of torchvision, timm and Pillow listed in `_CHECKED_CODE` are
defined in the library's own files, without a decorator from elsewhere. Code that these functions
call in turn, for example in torch, is not checked.

Guarantees: nothing is called, imported or cached, so a later replacement is detected at the next
check, which takes about a millisecond.

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
_CHECKED_CODE: Mapping[str, tuple[str, ...] | None] = {
    "PIL.Image": ("blend", "composite", "fromarray", "frombuffer", "merge", "new", "open"),
    "PIL.Image.Image": (
        *("convert", "copy", "crop", "filter", "histogram", "load", "point"),
        *("resize", "split", "tobytes", "transform", "transpose"),
    ),
    "PIL.ImageEnhance": None,
    "PIL.ImageEnhance._Enhance": ("enhance",),
    "PIL.ImageFile.ImageFile": ("load",),
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
"""Functions by module or class, checked if it was imported; None for all of them."""
_CALLED = (
    *("__call__", "__getattr__", "_call_impl", "_wrapped_call_impl", "forward"),
    *("__getitem__", "__getitems__", "__iter__", "__len__"),
)
"""Methods of torch's modules and datasets that matter: other packages add methods to them."""


def unchecked_version(library: str) -> str:
    """Reason not to trust a library's version, without a full stop; "" if it was checked."""
    module = sys.modules.get(library)
    if library not in CHECKED_VERSIONS or module is None:
        return ""
    version = str(getattr(module, "__version__", ""))
    oldest, newest = map(_version_numbers, CHECKED_VERSIONS[library])
    numbers = _version_numbers(version)
    if oldest <= numbers and numbers[: len(newest)] <= newest:
        return ""
    name = "Pillow" if library == "PIL" else library
    first, last = CHECKED_VERSIONS[library]
    return f"{name} {version} is not among the versions checked with feedline, {first} to {last}"


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def replaced_function() -> str:
    """First replaced function of the libraries, e.g. "a.b was replaced by c.d"; "" for none."""
    jpeg = sys.modules.get("PIL.JpegImagePlugin")
    if jpeg is not None:
        opener = sys.modules["PIL.Image"].OPEN.get("JPEG", (jpeg.jpeg_factory, None))[0]
        if not is_original(opener, "jpeg_factory"):
            return _replaced("PIL.JpegImagePlugin.jpeg_factory", opener)
    for path, names in _CHECKED_CODE.items():
        module, _, kind = path.rpartition(".")
        owner = sys.modules.get(path) or getattr(sys.modules.get(module), kind, None)
        for name, member in _members(owner, names):
            if not _may_be_original(member):
                return _replaced(f"{path}.{name}", member)
    return ""


def replaced_method(kind: type) -> str:
    """First replaced method of a library's class, as in `replaced_function`.

    Checks all methods defined in torchvision, timm and Pillow, also those of base classes; of
    torch's classes only those by which a module or a dataset is used.
    """
    for base in kind.__mro__:
        library = library_of(base)
        for name, member in _members(base, _CALLED if library == "torch" else None):
            where = f"{base.__qualname__}.{name}"
            for method in _functions_of(member) if library in _LIBRARIES else ():
                if not is_original(method, None if library == "torch" else where):
                    return _replaced(f"{base.__module__}.{where}", method)
    return ""


def _members(owner: Any, names: tuple[str, ...] | None) -> Iterator[tuple[str, Any]]:
    attributes = {} if owner is None else vars(owner)
    return ((name, attributes[name]) for name in names or tuple(attributes) if name in attributes)


def library_of(thing: Any) -> str:
    """Top module of a class or function, e.g. "torchvision"."""
    return str(thing.__module__).partition(".")[0]


def is_original(function: Any, qualified_name: str | None = None) -> bool:
    """Return True if a function is a library's own, from the file of its module.

    Args:
        function: any object.
        qualified_name: its name within its module; None for any.
    """
    function = _without_timer(function)
    if type(function) is not FunctionType:
        return False
    code, home = function.__code__, function.__globals__
    module = sys.modules.get(home.get("__name__", ""))
    if module is None or vars(module) is not home or code.co_filename != home.get("__file__"):
        return False
    if not _is_trusted(module.__name__.partition(".")[0]):
        return False
    if "__wrapped__" in vars(function):
        return is_original(vars(function)["__wrapped__"], qualified_name)
    return qualified_name is None or function.__qualname__ == qualified_name


def _without_timer(function: Any) -> Any:
    """Function inside a timer that feedline added in workers; otherwise the function itself."""
    timing: Any = sys.modules.get("feedline.trace.transform_timing")
    if timing is not None and getattr(function, "__globals__", None) is vars(timing):
        return vars(function).get("__wrapped__", function)
    return function


def _is_trusted(top: str) -> bool:
    return top in _LIBRARIES or top in sys.stdlib_module_names


def _may_be_original(value: Any) -> bool:
    """Return True unless an attribute of a module is a function or class from elsewhere."""
    if isinstance(value, type):
        return _is_trusted(library_of(value))
    if type(value) in (BuiltinFunctionType, ModuleType) or not callable(value):
        return True
    return is_original(value) or library_of(type(value)) in ("typing", *_LIBRARIES)


def _functions_of(member: Any) -> list[Any]:
    """Functions that run when a class member is called, read or set; none for plain values."""
    if isinstance(member, (staticmethod, classmethod)):
        return [member.__func__]
    if isinstance(member, property):
        return [each for each in (member.fget, member.fset) if each is not None]
    return [member] if callable(member) and not isinstance(member, type) else []


def _replaced(original: str, by: Any) -> str:
    if type(by) is FunctionType:  # its code says where it is from: __module__ may have been copied
        name = f"{by.__globals__.get('__name__')}.{by.__code__.co_name}"
    elif isinstance(by, type):
        name = f"{by.__module__}.{by.__qualname__}"
    else:
        name = f"an object of {type(by).__module__}.{type(by).__qualname__}"
    return f"{original} was replaced by {name}"
