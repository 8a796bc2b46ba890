"""What a step of a torchvision pipeline is: one of torchvision's own, unaltered, or anything.

Guarantees: torchvision is never imported: a step of it can only come from where it was. A subclass,
a step with hooks or with a method put in its place is anything, as it may do anything.

Relies on the names and modules of torchvision's transforms, both versions of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from inspect import isfunction
from typing import Any

from torch import nn

__all__ = ["NotRecognised", "flattened", "origin", "said", "unaltered", "well_behaved", "words"]

_MODULES = ("torchvision.transforms", "torchvision.transforms.v2")
_OWN = ("torchvision.", "torch.", "typing")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_LONGEST = 120

# They hold steps of which nothing is known, or draw from Python's generator.
_ANYTHING = frozenset(("Compose", "Lambda", "RandomApply", "RandomChoice", "RandomOrder"))


class NotRecognised(Exception):
    """Why a dataset or a step is not: a sentence."""


def origin(step: object) -> str | None:
    """The name of the class that a step is exactly one of; None where it is not torchvision's."""
    kind = type(step)
    modules = (sys.modules.get(module) for module in _MODULES)
    known = kind is nn.Identity or any(
        getattr(module, kind.__name__, None) is kind for module in modules
    )
    return kind.__name__ if known and unaltered(step) else None


def unaltered(thing: object) -> bool:
    """Whether a thing of torch's or torchvision's has no hooks, nor methods of anybody else."""
    kind = type(thing)
    if any(hasattr(kind, name) for name in vars(thing)):
        return False
    if any(vars(thing).get(hooks) for hooks in _HOOKS):
        return False
    members = (member for base in kind.__mro__ for member in vars(base).values())
    functions = (getattr(member, "__func__", member) for member in members)
    return all(
        function.__module__.startswith(_OWN) for function in functions if isfunction(function)
    )


def well_behaved(steps: Sequence[Callable[[Any], Any]]) -> bool:
    """Whether these steps surely draw from torch's global generator only, and keep no input.

    torchvision's own transforms do, but for RandomOrder and RandomChoice.
    """
    names = [origin(step) for step in steps]
    return all(name is not None and name not in _ANYTHING for name in names)


def flattened(transform: Any) -> Iterator[Callable[[Any], Any]]:
    """The steps of a transform one after another, out of any Compose and nn.Sequential."""
    children: Any = None
    if type(transform) is nn.Sequential and unaltered(transform):
        children = transform
    elif origin(transform) == "Compose":
        children = transform.transforms
    if type(children) in (list, tuple, nn.ModuleList, nn.Sequential):
        for child in children:
            yield from flattened(child)
    else:
        yield transform


def words(step: object) -> str:
    """A step as a user would write it, on one line."""
    try:
        name = getattr(step, "__qualname__", None)
        text = name if isinstance(name, str) else " ".join(repr(step).split())
    except Exception:
        text = type(step).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def said(error: Exception) -> str:
    """An exception on one line."""
    try:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    except Exception:
        return type(error).__name__
