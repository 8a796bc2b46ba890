"""Check that torchvision's and timm's code is their own and was not replaced.

Guarantees: everything the code reaches is checked: functions and classes by the names in it, down
through Pillow, and methods by their names, in every class it may have an object of. There is no
list of these functions. Nothing is called. Nothing is cached between two `Replacements`, so a
replacement is always detected.

Relies on: `library_code` for the library's own code, `callees` for what code reaches. torch's own
functions are checked, but not what they call: that is torch's C++.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, TypeAlias

import torch
from PIL import Image, ImageFile, JpegImagePlugin

from feedline.recognition.callees import Callees, callees_of
from feedline.recognition.library_code import (
    can_change,
    functions_of,
    is_method,
    is_own,
    may_stand_for,
    named,
    uncached,
)

__all__ = ["Replacements", "named"]

_OWN = ("torchvision", "timm")
_FOLLOWED = (*_OWN, "PIL")  # whose functions' own calls are looked at
_OBJECTS = (Image.Image, ImageFile.ImageFile, torch.Tensor)
"""Objects that code has without naming their classes."""
_TEXT = frozenset(("__repr__", "__str__", "__format__"))
"""Methods that make text, on which no pixel depends."""
_SPECIAL = frozenset(
    name
    for kind in (object, float, list, dict, torch._C.TensorBase)
    for name in dir(kind)
    if name.startswith("__")
) | {"__getattr__", "__call__", "__enter__", "__exit__", "__array_interface__"}
"""Methods that run without being named."""

Members: TypeAlias = dict[str, tuple[type, Any]]
"""Replaceable members of a class and its bases: by name, the base and the member."""


class _Reach:
    """Code that some functions reach.

    Args:
        functions: the functions.
    """

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        self.waiting: list[FunctionType] = list(functions)
        """Functions that were not inspected."""
        self._met: set[FunctionType] = set(self.waiting)
        self._names = set(_SPECIAL)
        self._kinds: dict[type, set[str]] = {kind: set() for kind in _OBJECTS}

    def add(self, callees: Callees) -> None:
        """Add the code that a function reaches."""
        self._names |= callees.names
        self._meet(*callees.kernels, *(value for _, _, value in callees.found))

    def methods(
        self, members_of: Callable[[type], Members]
    ) -> Iterator[tuple[type, str, FunctionType]]:
        """Methods that may be called, with class and name; each is returned once."""
        for kind, given in list(self._kinds.items()):
            members = members_of(kind)
            for name in (self._names & members.keys()) - given - _TEXT:
                given.add(name)
                base, member = members[name]
                for method in functions_of(member):
                    yield base, name, method
                    self._meet(method)

    def _meet(self, *values: Any) -> None:
        for value in map(uncached, values):
            if type(value) is FunctionType:
                if _top(value) in _FOLLOWED and value not in self._met:
                    self._met.add(value)
                    self.waiting.append(value)
            elif isinstance(value, type) and value.__module__.partition(".")[0] in _FOLLOWED:
                self._kinds.setdefault(value, set())


class Replacements:
    """Checks functions and classes, each of them once."""

    def __init__(self) -> None:
        self._own: set[object] = set()
        self._callees: dict[FunctionType, Callees] = {}
        self._members: dict[type, Members] = {}
        self._pillow: str | None = None

    def replaced_in(self, kind: type, called: tuple[str, ...] | None = None) -> str:
        """Describe what was replaced in a class of torch or torchvision.

        Args:
            kind: the class.
            called: methods that matter: of torch's classes only these are checked, and of
                torchvision's only these methods' own calls; None for all.

        Returns:
            a sentence without its full stop, e.g. "a.b was replaced by c.d"; "" if nothing was
            replaced.
        """
        if kind in self._own:
            return ""
        methods: list[FunctionType] = []
        for base in kind.__mro__:
            top = base.__module__.partition(".")[0]
            if base in self._own or top not in ("torch", *_OWN):
                continue
            theirs = top in _OWN
            for name, member in vars(base).items():
                if not theirs and called is not None and name not in called:
                    continue
                where = f"{base.__qualname__}.{name}"
                for function in map(_untimed, functions_of(member)):
                    if not theirs and is_method(base, name, function):
                        continue  # torch's, or what another package has added
                    if not is_own(function) or (theirs and function.__qualname__ != where):
                        return _replaced(f"{base.__module__}.{where}", function)
                    if theirs and (called is None or name in called):
                        methods.append(function)
        why = self.replaced_below(methods)
        if not why:
            self._own.update(kind.__mro__)
        return why

    def is_own(self, function: object) -> bool:
        """Return True for an original function of torchvision or timm, with everything it calls."""
        if not is_own(function) or type(function) is not FunctionType:
            return False
        return _top(function) in _OWN and not self.replaced_below([function])

    def replaced_below(self, functions: list[FunctionType]) -> str:
        """Describe what was replaced in the code that library functions call; see `replaced_in`."""
        reach = _Reach(functions)
        while reach.waiting:
            function = reach.waiting.pop()
            callees = self._callees.get(function)
            if callees is None:
                callees = callees_of(function)
                for owner, name, value in callees.found:
                    if not may_stand_for(owner, name, value):
                        return _replaced(f"{owner}.{name}", value)
                for kernel in callees.kernels:
                    if not is_own(kernel):
                        return _replaced(f"The kernel of {named(function)}", kernel)
                self._callees[function] = callees
            reach.add(callees)
            if not reach.waiting:
                for base, name, method in reach.methods(self._members_of):
                    if not is_method(base, name, method):
                        return _replaced(f"{base.__module__}.{base.__qualname__}.{name}", method)
        return ""

    def _members_of(self, kind: type) -> Members:
        found = self._members.get(kind)
        if found is None:
            found = self._members[kind] = {
                name: (base, member)
                for base in reversed(kind.__mro__)
                if base is torch.Tensor or base.__module__.partition(".")[0] in _FOLLOWED
                for name, member in (vars(base).items() if can_change(base) else ())
            }
        return found

    def replaced_in_loader(self, loader: Any) -> str | None:
        """Describe what was replaced in torchvision's image loader; see `replaced_in`.

        Returns:
            None if it is not a torchvision loader.
        """
        folder: Any = sys.modules.get("torchvision.datasets.folder")
        for name in ("default_loader", "pil_loader"):
            if getattr(folder, name, None) is loader and not is_own(loader, name):
                return _replaced(f"{folder.__name__}.{name}", loader)
        if type(loader) is not FunctionType or loader.__globals__ is not vars(folder):
            return None
        if not any(is_own(loader, name) for name in ("default_loader", "pil_loader")):
            return None
        backend = vars(sys.modules["torchvision"]).get("get_image_backend")
        if not is_own(backend, "get_image_backend"):
            return _replaced("torchvision.get_image_backend", backend)
        return self.replaced_in_pillow() or self.replaced_below([loader])

    def replaced_in_pillow(self) -> str:
        """Describe what was replaced in Pillow's opening and decoding; see `replaced_in`."""
        if self._pillow is None:
            self._pillow = self._looked_into_pillow()
        return self._pillow

    def _looked_into_pillow(self) -> str:
        roots: list[Any] = []
        for owner, name, value in _ways_to_open():
            if not is_own(value, name):
                return _replaced(f"{owner}.{name}", value)
            roots.append(value)
        return self.replaced_below(roots)


def _ways_to_open() -> Iterator[tuple[str, str, Any]]:
    """Functions that open an image of a file, with their module or class and their name."""
    yield "PIL.Image", "open", vars(Image).get("open")
    yield "PIL.Image.Image", "convert", vars(Image.Image).get("convert")
    yield "PIL.ImageFile.ImageFile", "load", vars(ImageFile.ImageFile).get("load")
    opener = Image.OPEN.get("JPEG", (vars(JpegImagePlugin).get("jpeg_factory"), None))[0]
    yield "PIL.JpegImagePlugin", "jpeg_factory", opener


def _untimed(function: Any) -> Any:
    """Function inside a timer that feedline added in workers; otherwise the function itself."""
    timed: Any = sys.modules.get("feedline.trace.transform_timing")
    if timed is not None and getattr(function, "__globals__", None) is vars(timed):
        return vars(function).get("__wrapped__", function)
    return function


def _top(function: FunctionType) -> str:
    return str(function.__globals__["__name__"]).partition(".")[0]


def _replaced(what: str, by: object) -> str:
    return f"{what} was replaced by {named(by)}"
