"""What a user's classes and functions run with, where pickle only names them.

That is their own code and what it finds: attributes of classes, defaults, closures, and those
globals that the code loads. Code of the standard library and of installed packages stays a name,
but for a function of the user's that it wraps.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["is_class", "is_module", "is_users", "name_of", "parts"]

_NOT_USERS = sys.stdlib_module_names | {"feedline", "numpy", "PIL", "torch", "torchvision"}

_EXTENDED = dis.opmap["EXTENDED_ARG"]
_IMPORT = dis.opmap["IMPORT_NAME"]
_LOADS = {
    dis.opmap[name]: 1 if name == "LOAD_GLOBAL" and sys.version_info >= (3, 11) else 0
    for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    if name in dis.opmap
}
"""What loads a global, and by how many bits its argument is more than the name's number."""


def is_class(value: object) -> bool:
    """Whether it is a class; no object that only says so of itself."""
    return issubclass(type(value), type)


def is_module(value: object) -> bool:
    """Whether it is a module."""
    return issubclass(type(value), ModuleType)


def name_of(code: Any) -> tuple[str, str]:
    """How a class or function is named."""
    return str(code.__module__), str(code.__qualname__)


def is_users(code: Any) -> bool:
    """Whether a class, function or module is of the user's own modules."""
    if type(code) is FunctionType:  # a decorator may have given it another's __module__
        space = code.__globals__
        return _is_users(str(space.get("__name__")), space.get("__file__"))
    name = str(code.__name__ if is_module(code) else code.__module__)
    module = sys.modules.get(name)
    file = None if module is None else getattr(module, "__file__", None) or ""
    return _is_users(name, file)


@lru_cache(maxsize=4096)
def _is_users(name: str, file: str | None) -> bool:
    """Whether a module is.

    Args:
        name: the module's.
        file: that it is from; "" where it is from none, None where code was made without one.
    """
    if name == "__main__":
        return True
    if name.partition(".")[0] in _NOT_USERS or file == "":
        return False
    return file is None or not {"site-packages", "dist-packages"} & set(PurePath(file).parts)


def parts(code: Any) -> Iterator[object]:
    """What a class or function is and runs with, the same each time while nothing changes."""
    yield name_of(code)
    if is_class(code):
        yield type(code), code.__bases__
        for name, value in list(vars(code).items()):
            # Of Python's own only what runs: annotations and such say nothing.
            if not name.startswith("__") or callable(value) or hasattr(type(value), "__get__"):
                yield name, value
    elif is_users(code):
        body = _body(code.__code__)
        yield body.digest, code.__defaults__, code.__kwdefaults__
        yield vars(code)
        yield from _cells(code)
        yield from _globals(body, code.__globals__)
    else:
        for held in (getattr(code, "__wrapped__", None), *_cells(code)):
            if (is_class(held) or type(held) is FunctionType) and is_users(held):
                yield held


def _cells(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield "an empty cell"


def _globals(body: _Body, space: dict[str, Any]) -> Iterator[object]:
    for name in body.loads:
        if name not in space:
            yield name  # a builtin, or not yet there
        elif is_module(space[name]):
            yield from _named_of(space[name], body.names, set())
        else:
            yield name, space[name]
    for name in body.imports:
        for full in (name, f"{space.get('__package__')}.{name}".rstrip(".")):
            if is_module(sys.modules.get(full)):
                yield from _named_of(sys.modules[full], body.names, set())


def _named_of(module: ModuleType, names: tuple[str, ...], seen: set[int]) -> Iterator[object]:
    """What has these names in a module of the user's, and in those that it has by such a name."""
    yield module.__name__
    if id(module) in seen or not is_users(module):
        return
    seen.add(id(module))
    there = vars(module)
    for name in names:
        if name in there and is_module(there[name]):
            yield from _named_of(there[name], names, seen)
        elif name in there:
            yield name, there[name]


@dataclass(frozen=True)
class _Body:
    """Code, and what it names: all of it, and those within it.

    Args:
        digest: of what it does.
        loads: names of globals.
        imports: names of modules.
        names: all of these, and of attributes.
    """

    digest: bytes
    loads: tuple[str, ...]
    imports: tuple[str, ...]
    names: tuple[str, ...]


_BODIES: WeakKeyDictionary[CodeType, _Body] = WeakKeyDictionary()


def _body(code: CodeType) -> _Body:
    found = _BODIES.get(code)
    if found is None:
        found = _BODIES[code] = _read(code)
    return found


def _read(code: CodeType) -> _Body:
    loads, imports = dict[str, None](), dict[str, None]()
    upper = 0
    raw = code.co_code
    # dis would do it, in twenty times the time.
    for operation, low in zip(raw[::2], raw[1::2], strict=True):
        number = upper | low
        upper = number << 8 if operation == _EXTENDED else 0
        if operation in _LOADS:
            loads[code.co_names[number >> _LOADS[operation]]] = None
        elif operation == _IMPORT:
            imports[code.co_names[number]] = None
    names = dict.fromkeys(code.co_names)
    constants: list[object] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            within = _body(constant)
            for ours, theirs in (
                (loads, within.loads),
                (imports, within.imports),
                (names, within.names),
            ):
                ours.update(dict.fromkeys(theirs))
            constants.append(within.digest)
        else:
            constants.append(constant)  # of plain types: its repr has no address
    takes = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    held = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    told = repr((raw, takes, held, constants)).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(told, digest_size=16).digest()
    return _Body(digest, tuple(loads), tuple(imports), tuple(names))
