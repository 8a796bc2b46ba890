"""In which form several views of an image are handed out: lists and tuples of them.

Guarantees: pure; a form pickles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Form", "Wrapped", "arranged", "in_words"]

Form: TypeAlias = "int | tuple[type, tuple[Form, ...]]"
"""How views are handed out: the number of one, or a list or tuple of such."""


@dataclass(frozen=True)
class Wrapped:
    """What a wrapper was read as.

    Args:
        transforms: what is called with the image, in the order of the calls.
        form: how what they give is handed out.
    """

    transforms: tuple[Callable[..., Any], ...]
    form: Form

    def form_from(self, first: int) -> Form:
        """The form where the first view has another number than 0."""
        return _shifted(self.form, first)


def arranged(form: Form, made: list[Any]) -> Any:
    """Views in the form in which a wrapper hands them out."""
    if isinstance(form, int):
        return made[form]
    kind, parts = form
    return kind(arranged(part, made) for part in parts)


def in_words(form: Form) -> str:
    """A form as Python would write it, of the views' numbers: "[0, (1, 2)]"."""
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
