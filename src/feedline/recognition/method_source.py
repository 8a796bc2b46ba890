"""Statements of a method from its source, and whether they are the code that runs.

Guarantees: they are, if compiling the source again gives the code of the method. A method that
calls a module's functions may count as different, because it is compiled without the module's
imports.

Relies on: Python's own parser and compiler; `inspect` to find the source.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import CodeType, FunctionType

__all__ = ["Method", "NotUnderstoodError", "method_of_image"]

_COMPARED = (
    *("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
)
_FUTURES = 0x1FF0000
"""Flags of a code object for `from __future__ import ...`."""


class NotUnderstoodError(Exception):
    """Reason why user code is not understood, a sentence without its full stop."""


@dataclass(frozen=True)
class Method:
    """A method of one argument.

    Args:
        body: its statements.
        own: name of its object (self).
        argument: name of the argument.
        runs: the statements are certainly the code that runs.
    """

    body: list[ast.stmt]
    own: str
    argument: str
    runs: bool


def method_of_image(function: FunctionType) -> Method:
    """Source of a method of one argument.

    Raises:
        NotUnderstoodError: it cannot be found, or is not such a method.
    """
    where = function.__qualname__
    try:
        source = inspect.getsource(function)
        tree = ast.parse("if True:\n" + source if source[:1].isspace() else source)
    except (OSError, TypeError, SyntaxError):
        raise NotUnderstoodError(f"the source of {where} cannot be found") from None
    holder: ast.AST = tree.body[0]
    definition = holder.body[0] if isinstance(holder, ast.If) else holder
    if not isinstance(definition, ast.FunctionDef):
        raise NotUnderstoodError(f"{where} is not a plain method")
    definition.decorator_list = []
    flags = function.__code__.co_flags & _FUTURES
    compiled = compile(tree, "<wrapper>", "exec", flags, dont_inherit=True)
    codes = [each for each in compiled.co_consts if isinstance(each, CodeType)]
    arguments = definition.args
    plain = [each.arg for each in arguments.posonlyargs + arguments.args]
    others = arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults
    if len(plain) != 2 or others:
        raise NotUnderstoodError(f"{where} takes more than an image")
    runs = len(codes) == 1 and _same(codes[0], function.__code__)
    return Method(definition.body, plain[0], plain[1], runs)


def _same(one: CodeType, other: CodeType) -> bool:
    """Return True if two code objects do the same, independent of their position."""
    if any(getattr(one, part) != getattr(other, part) for part in _COMPARED):
        return False
    if len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _same(mine, theirs)
        if isinstance(mine, CodeType) and isinstance(theirs, CodeType)
        else repr(mine) == repr(theirs)  # 1 is not True
        for mine, theirs in zip(one.co_consts, other.co_consts, strict=True)
    )
