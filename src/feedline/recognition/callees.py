"""Names that a function's code refers to: other functions, classes, methods.

Guarantees: every name in the code is looked up in its module, and in each library module the code
names; nested functions are included. Nothing is called.

Relies on: Python's record of the names used by code (`co_names`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

__all__ = ["Callees", "callees_of"]

_LOOKED_INTO = ("torchvision", "timm", "PIL", "torch", "numpy", "math", "random")
"""Libraries whose module attributes do not matter: their output changes no pixel."""
_PLAIN = frozenset((bool, dict, float, int, list, str, tuple, type(None)))
_PLAIN_OR_MODULE = _PLAIN | {ModuleType}
_KERNELS = "torchvision.transforms.v2.functional._utils"


@dataclass(frozen=True)
class Callees:
    """Names a function refers to.

    Args:
        names: all names in its code, including those of methods.
        found: values of module-level names: the module's name, the name, the value.
        kernels: functions that torchvision's version 2 dispatches to for an image.
    """

    names: frozenset[str]
    found: tuple[tuple[str, str, Any], ...]
    kernels: tuple[Any, ...]


def callees_of(function: FunctionType) -> Callees:
    """Names a function refers to at present."""
    module = function.__globals__
    names = _names_in(function.__code__)
    found: list[tuple[str, str, Any]] = []
    for name in names:
        value = module.get(name, module)
        if value is module:  # it may be imported where it is called
            value = sys.modules.get(f"{module.get('__package__')}.{name}")
            if value is None:
                continue
        if type(value) is not ModuleType:
            if type(value) not in _PLAIN:
                found.append((module["__name__"], name, value))
        elif sys.modules.get(value.__name__) is not value:
            found.append((module["__name__"], name, value))
        elif value.__name__.partition(".")[0] in _LOOKED_INTO:
            within = vars(value)
            for inner in names:
                if inner in within and type(within[inner]) not in _PLAIN_OR_MODULE:
                    found.append((value.__name__, inner, within[inner]))
    return Callees(names, tuple(found), tuple(_kernels(function)))


def _names_in(code: CodeType) -> frozenset[str]:
    names = frozenset(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names


def _kernels(function: FunctionType) -> list[Any]:
    """Functions that version 2 dispatches to for an image."""
    utilities: Any = sys.modules.get(_KERNELS)
    kernels = getattr(utilities, "_KERNEL_REGISTRY", {}).get(function, {})
    found: list[Any] = []
    for kind, kernel in kernels.items():
        if kind.__module__.startswith(("torchvision.", "torch", "PIL.")):
            if getattr(kernel, "__globals__", None) is vars(utilities) and kernel.__closure__:
                # torchvision's own wrapper for its tensors.
                cells = (cell.cell_contents for cell in kernel.__closure__)
                found.extend(content for content in cells if callable(content))
            else:
                found.append(kernel)
    return found
