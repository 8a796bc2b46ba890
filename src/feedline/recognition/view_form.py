"""Structure in which several views of an image are returned: nested lists and tuples.

Guarantees: pure; a structure can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Form", "Wrapped", "arranged", "in_words"]

Form: TypeAlias = "int | tuple[type, tuple[Form, ...]]"
"""Structure of views: the number of one, or a list or tuple of structures."""


@dataclass(frozen=True)
class Wrapped:
    """Result of reading a wrapper.

    Args:
        transforms: functions called with the image, in the order of the calls.
        form: structure of their return values.
    """

    transforms: tuple[Callable[..., Any], ...]
    form: Form

    def form_from(self, first: int) -> Form:
        """The structure with view numbers that start at an offset."""
        return _shifted(self.form, first)


def arranged(form: Form, made: list[Any]) -> Any:
    """Arrange views in the structure of a wrapper."""
    if isinstance(form, int):
        return made[form]
    kind, parts = form
    return kind(arranged(part, made) for part in parts)


def in_words(form: Form) -> str:
    """A structure as Python would write it, with the views' numbers: "[0, (1, 2)]"."""
    if isinstance(form, int):
        return str(form)
    kind, parts = form
    inner = ", ".join(map(in_words, parts))
    return f"[{inner}]" if kind is list else f"({inner})"


def _shifted(form: Form, by: int) -> Form:
    if isinstance(form, int):
        return form + by
    kind, parts = form
    return kind, tuple(_shifted(part, by) for part in parts)
