"""The functions of libraries that a call really runs, found by running it, and how to wrap one."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

__all__ = ["calls_of", "counted", "named"]

LIBRARIES = ("torchvision", "timm", "PIL")
Place = tuple[Any, str]
"""A module or class, and the name of a function in it."""


def named(place: Place) -> str:
    owner, name = place
    return f"{owner.__name__}.{name}"


def calls_of(call: Callable[[], object]) -> list[Place]:
    """Which functions of torchvision, timm and Pillow a call runs, and of torch those they call."""
    places = _places()
    found: dict[Place, None] = {}

    def note(frame: Any, event: str, function: Any) -> None:
        if event == "call" and frame.f_code in places:
            found.update(dict.fromkeys(places[frame.f_code]))
        elif event == "c_call" and _top(frame.f_globals.get("__name__", "")) in LIBRARIES:
            name, of = function.__name__, getattr(function, "__self__", None)
            if getattr(torch, name, None) is function:
                found[torch, name] = None
            elif isinstance(of, torch.Tensor):
                found[torch.Tensor, name] = None
            elif isinstance(of, random.Random):
                found[random, name] = None

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def _places() -> dict[CodeType, list[Place]]:
    """Where the functions are, by their code: they may have been imported elsewhere."""
    found: dict[CodeType, list[Place]] = {}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and _top(module.__name__) in LIBRARIES:
            kinds = (each for each in vars(module).values() if isinstance(each, type))
            for owner in (module, *(kind for kind in kinds if kind.__module__ == module.__name__)):
                for name, member in vars(owner).items():
                    function = _function(member)
                    if type(function) is not FunctionType:
                        continue
                    if _top(function.__globals__["__name__"]) in LIBRARIES:
                        found.setdefault(function.__code__, []).append((owner, name))
    return found


def _function(member: Any) -> Any:
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def _top(module: str) -> str:
    return module.partition(".")[0]


@contextmanager
def counted(place: Place) -> Iterator[list[str]]:
    """A function of a user's in the place of a library's, which calls it; gives a list of calls."""
    owner, name = place
    own = name in vars(owner)
    before = vars(owner)[name] if own else getattr(owner, name)
    inner, calls = _function(before), []

    def around(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return inner(*args, **kwargs)

    put: Any = around
    if isinstance(before, (staticmethod, classmethod)):
        put = type(before)(around)
    elif isinstance(before, property):
        put = property(around, before.fset)
    setattr(owner, name, put)
    try:
        yield calls
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
