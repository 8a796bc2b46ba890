"""Search for the part of a value that cannot be pickled, for error messages.

Guarantees: changes nothing, and takes long only if pickling has failed already.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import TypeAlias

from feedline.engine.messages import said

__all__ = ["Culprit", "culprit_in"]

Dump: TypeAlias = Callable[[object], object]
"""Pickles a value, or raises."""

_DEPTH = 8
_MOST_PARTS = 1000


@dataclass(frozen=True)
class Culprit:
    """The innermost part of a value that cannot be pickled.

    Args:
        path: path to it in the user's terms, e.g. dataset.transform.function.
        value: the part.
        error: exception raised by pickling it.
    """

    path: str
    value: object
    error: Exception

    @property
    def reason(self) -> str:
        """Reason why it cannot be pickled."""
        method = self._raised_in()
        kind = type(self.error).__name__
        if method is not None:
            return f"its {method} raised {kind}: {said(self.error)}"
        return said(self.error)

    @property
    def remedy(self) -> str:
        """Fix other than not pickling it; the beginning of a sentence."""
        kind = self.value if isinstance(self.value, type) else type(self.value)
        if isinstance(self.value, (FunctionType, type)) or "<locals>" in kind.__qualname__:
            return (
                "Lambdas, and functions or classes defined inside a function, cannot be pickled: "
                "define them at the top level of a module"
            )
        if kind.__module__.startswith("multiprocessing."):
            return "Create it with multiprocessing.get_context() of the workers' start method"
        if self._raised_in() is not None:
            return f"Fix the pickling of {kind.__name__}"
        return (
            f"A {kind.__name__} belongs to one process and cannot be pickled: open or create it in "
            "the worker, when it is first used, and leave it out in __getstate__"
        )

    def _raised_in(self) -> str | None:
        """Special method of the value that raised the error."""
        for frame, _ in traceback.walk_tb(self.error.__traceback__):
            name, arguments = frame.f_code.co_name, frame.f_code.co_varnames[:1]
            if name.startswith("__") and any(
                frame.f_locals.get(a) is self.value for a in arguments
            ):
                return name
        return None


def _plain_dump(value: object) -> None:
    # Large arrays need not be copied to learn that they pickle.
    pickle.Pickler(io.BytesIO(), 5, buffer_callback=lambda _: None).dump(value)


def culprit_in(
    value: object,
    path: str,
    parts: Mapping[str, object] | None = None,
    dump: Dump = _plain_dump,
) -> Culprit:
    """Find the part that cannot be pickled.

    Args:
        value: value that cannot be pickled.
        path: its name in the user's terms.
        parts: its parts by the user's names, if those are not its attributes.
        dump: function that pickles it.
    """
    for name, part in (parts or {}).items():
        if _refusal(part, dump) is not None:
            return culprit_in(part, name, dump=dump)
    return _innermost(value, path, _refusal(value, dump), _DEPTH, dump)


def _innermost(
    value: object, path: str, error: Exception | None, depth: int, dump: Dump
) -> Culprit:
    for key, part in _parts(value).items() if depth else ():
        refused = _refusal(part, dump)
        if refused is not None:
            return _innermost(part, path + key, refused, depth - 1, dump)
    # It may pickle by itself, and not along with what it came in.
    return Culprit(path, value, error or pickle.PicklingError("it cannot be pickled"))


def _refusal(value: object, dump: Dump) -> Exception | None:
    """Exception raised by pickling a value; None if it succeeds."""
    try:
        dump(value)
    except Exception as error:
        return error
    return None


def _parts(value: object) -> dict[str, object]:
    """Parts that are pickled with a value, by their suffix in Python code."""
    if isinstance(value, partial):
        return {".func": value.func, ".args": value.args, ".keywords": value.keywords}
    if isinstance(value, MethodType):
        return {".__self__": value.__self__}
    if isinstance(value, (FunctionType, ModuleType, type)):
        return {}
    if isinstance(value, dict):
        return {f"[{key!r}]": part for key, part in list(value.items())[:_MOST_PARTS]}
    if isinstance(value, (list, tuple)):
        return {f"[{k}]": part for k, part in enumerate(value[:_MOST_PARTS])}
    own = getattr(type(value), "__getstate__", None)
    if own in (None, getattr(object, "__getstate__", None)):
        state = getattr(value, "__dict__", {})
    else:
        try:
            state = own(value)
        except Exception:
            return {}
    return {f".{key}": part for key, part in state.items()} if isinstance(state, dict) else {}
