"""User-defined classes that call transforms with an image, compiled as the views they return.

Guarantees: no code of the class is run. Only a `__call__` is accepted whose every statement is
understood, and whose source is the compiled code; it may assign, build lists and tuples, append,
extend and iterate over lists and `range`, and nothing else. It reads only plain attributes of
itself, and changes none of them. So a class that draws, counts or changes the image is not
accepted.

Relies on: `method_source` for the statements.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FunctionType, GetSetDescriptorType, NoneType
from typing import Any

from feedline.recognition.method_source import NotUnderstoodError, method_of_image
from feedline.recognition.steps import words
from feedline.recognition.view_form import Form, Wrapped

__all__ = ["users_call", "wrapped_in"]

_LIBRARIES = ("torch", "torchvision", "timm", "feedline")
_MOST_VIEWS = 64
_MOST_PARTS = 200  # views and lists: a list may hold itself
_DEEPEST = 4


def wrapped_in(transform: object) -> Wrapped | str:
    """Transforms that a wrapper calls with the image.

    Returns:
        the transforms; or why it runs unchanged, a sentence, "" if it is not an object of a
        user-defined class.
    """
    if users_call(transform) is None:
        return ""
    try:
        calls: list[Callable[..., Any]] = []
        form = _form(_Call(transform, calls, 0).value(), iter(range(_MOST_PARTS)))
    except NotUnderstoodError as why:
        return f"{words(transform)} runs unchanged: {why}."
    return Wrapped(tuple(calls), form)


class _Built(list[Any]):
    """A list that a wrapper builds in its call; it may change no other."""


@dataclass(frozen=True)
class _View:
    """Return value of a transform for the image."""

    number: int


_LISTS = (_Built, list, tuple)
_IMAGE = object()
"""Image that a wrapper is called with."""


def _form(value: Any, parts: Iterator[int]) -> Form:
    """Structure of a wrapper's return value; `parts` limits its size."""
    if next(parts, None) is None:
        raise NotUnderstoodError(f"it returns more than {_MOST_PARTS} views and lists")
    if isinstance(value, _View):
        return value.number
    if type(value) in (_Built, tuple) and value:
        inner = tuple(_form(each, parts) for each in value)
        return tuple if type(value) is tuple else list, inner
    raise NotUnderstoodError("it returns something else than its transforms' outputs for the image")


@dataclass
class _Call:
    """Call of a wrapper with the image, followed statement by statement.

    Args:
        wrapper: the object.
        calls: receives the called transforms.
        depth: nesting depth of wrappers.
    """

    wrapper: object
    calls: list[Callable[..., Any]]
    depth: int
    names: dict[str, Any] = field(default_factory=dict)
    rounds: int = 1000

    def value(self) -> Any:
        """Return value of the call."""
        kind = type(self.wrapper)
        function = users_call(self.wrapper)
        assert function is not None, "the wrapper has a __call__"
        if (
            _looked_up(kind, "__getattr__")
            or kind.__getattribute__ is not object.__getattribute__
            or type(_looked_up(kind, "__dict__")) not in (GetSetDescriptorType, NoneType)
        ):
            raise NotUnderstoodError(f"{kind.__name__} overrides attribute access")
        self._globals = function.__globals__
        method = method_of_image(function)
        self._self, self.names = method.own, {method.argument: _IMAGE}
        *body, last = method.body
        for statement in body[1:] if body and _is_text(body[0]) else body:
            self._do(statement)
        if not isinstance(last, ast.Return) or last.value is None:
            raise NotUnderstoodError(f"{kind.__name__}.__call__ does not end with a return")
        made = self._of(last.value)
        if not method.runs:
            raise NotUnderstoodError(
                f"the source of {function.__qualname__} is not the code that runs"
            )
        return made

    def _do(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.names[name] = self._of(value)
            case ast.Assign(targets=[ast.Tuple(elts=names) | ast.List(elts=names)], value=value):
                held = self._of(value)
                if type(held) not in _LISTS or len(held) != len(names):
                    raise self._not(statement)
                for target, each in zip(names, list(held), strict=True):
                    if not isinstance(target, ast.Name):
                        raise self._not(statement)
                    self.names[target.id] = each
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self.names[name] = self._of(value)
            case ast.For(target=ast.Name(id=name), iter=over, body=body, orelse=[]):
                if isinstance(over, ast.Name | ast.Subscript) and type(self._of(over)) is _Built:
                    raise self._not(statement)  # it may grow on the way
                for each in self._many(over):
                    self.names[name] = each
                    for inner in body:
                        self._do(inner)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" as way),
                    args=[value],
                    keywords=[],
                )
            ) if type(self.names.get(name)) is _Built:
                added = self._of(value)
                if way == "append":
                    self.names[name].append(added)
                elif type(added) in _LISTS:
                    self.names[name].extend(self._spent(added))
                else:
                    raise self._not(statement)
            case _:
                raise self._not(statement)

    def _of(self, expression: ast.expr) -> Any:
        match expression:
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if (
                name == self._self and name not in self.names
            ):
                return self._attribute(attribute)
            case ast.Subscript(value=value, slice=place):
                held, number = self._of(value), _whole(place)
                if type(held) in _LISTS and -len(held) <= number < len(held):
                    return held[number]
            case ast.Call(func=func, args=[ast.Name(id=name)], keywords=[]):
                if self.names.get(name) is _IMAGE:
                    return self._called(self._of(func), expression)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                made = [self._of(part) for part in parts]
                return _Built(made) if isinstance(expression, ast.List) else tuple(made)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                first, second = self._of(left), self._of(right)
                if type(first) is type(second) is _Built:
                    return _Built(self._spent(first + second))
            case ast.ListComp(
                elt=made_of,
                generators=[
                    ast.comprehension(target=ast.Name(id=name), iter=over, ifs=[], is_async=0)
                ],
            ):
                return self._comprehended(name, over, made_of)
        raise self._not(expression)

    def _comprehended(self, name: str, over: ast.expr, made_of: ast.expr) -> _Built:
        outer, made = dict(self.names), _Built()
        for each in self._many(over):
            self.names = outer | {name: each}
            made.append(self._of(made_of))
        self.names = outer
        return made

    def _called(self, function: Any, expression: ast.expr) -> Any:
        """Output of a transform for the image: a view, or the return value of a nested wrapper."""
        if not callable(function) or isinstance(function, _View | type):
            raise self._not(expression)
        before = len(self.calls)
        if self.depth < _DEEPEST and users_call(function):
            try:
                return _Call(function, self.calls, self.depth + 1).value()
            except NotUnderstoodError:
                del self.calls[before:]  # it is one transform, whatever it does
        if len(self.calls) == _MOST_VIEWS:
            raise NotUnderstoodError(f"it makes more than {_MOST_VIEWS} views")
        self.calls.append(function)
        return _View(before)

    def _many(self, over: ast.expr) -> list[Any]:
        """Values that a loop iterates over."""
        match over:
            case ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]) if (
                "range" not in self._globals and "range" not in self.names
            ):
                number = _whole(count) if isinstance(count, ast.Constant) else self._of(count)
                if type(number) is int:
                    return self._spent(range(number))
            case _:
                held = self._of(over)
                if type(held) in _LISTS:
                    return self._spent(held)
        raise self._not(over)

    def _spent(self, held: Sequence[Any]) -> list[Any]:
        self.rounds -= len(held)
        if self.rounds < 0:
            raise NotUnderstoodError(f"{type(self.wrapper).__name__}.__call__ has too many steps")
        return list(held)

    def _attribute(self, name: str) -> Any:
        kind = type(self.wrapper)
        found = vars(self.wrapper) if hasattr(self.wrapper, "__dict__") else {}
        of_kind = _looked_up(kind, name)
        changes = any(hasattr(type(of_kind), way) for way in ("__set__", "__delete__"))
        if name in found and not changes:
            return found[name]
        if of_kind is None or name in found or hasattr(type(of_kind), "__get__"):
            raise NotUnderstoodError(f"{kind.__name__} has no plain attribute {name}")
        return of_kind

    def _not(self, part: ast.AST) -> NotUnderstoodError:
        text = " ".join(ast.unparse(part).split())
        shown = text if len(text) <= 80 else text[:77] + "..."
        return NotUnderstoodError(
            f"{type(self.wrapper).__name__}.__call__ does more than call transforms: {shown}"
        )


def _whole(expression: ast.expr) -> int:
    """Value of an integer literal, within the range of list indices."""
    try:
        number = ast.literal_eval(expression)
    except ValueError:
        return sys.maxsize
    return number if type(number) is int else sys.maxsize


def _looked_up(kind: type, name: str) -> Any:
    """Raw class attribute of a name."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def users_call(transform: object) -> FunctionType | None:
    """`__call__` of an object of a user-defined class; None for any other, or one in C."""
    kind = type(transform)
    call = _looked_up(kind, "__call__")
    if type(call) is not FunctionType:
        return None
    bases = [base.__module__.partition(".")[0] for base in kind.__mro__]
    return None if any(base in _LIBRARIES for base in bases) else call


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
