"""How a command says warnings: as its other messages, each of them once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import feedline
from feedline.cli.output import complain

__all__ = ["warnings_said"]

_OWN = f"{Path(feedline.__file__ or '').parent}/"


@contextmanager
def warnings_said(in_words: Callable[[str], str] = str) -> Iterator[None]:
    """Within the `with`: what a call of feedline's is warned of is one line, without its source.

    Warnings of other code are shown as Python shows them.

    Args:
        in_words: gives a message in the words of the command.
    """
    shown, said = warnings.showwarning, set[str]()

    def say(
        message: Warning | str, category: type[Warning], filename: str, *place: Any, **more: Any
    ) -> None:
        if not (issubclass(category, UserWarning) and filename.startswith(_OWN)):
            shown(message, category, filename, *place, **more)
        elif (text := in_words(str(message))) not in said:
            said.add(text)
            complain(text, label="warning: ")

    warnings.showwarning = say
    try:
        yield
    finally:
        warnings.showwarning = shown
