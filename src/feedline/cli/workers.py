"""`--workers auto|N`, alike in every command."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from feedline.errors import UsageError

__all__ = ["Workers", "worker_setting"]

Workers = Annotated[str, typer.Option(metavar="auto|N", help="Processes that load images.")]


def worker_setting(text: str) -> int | Literal["auto"]:
    """What was asked for.

    Raises:
        UsageError: neither "auto" nor a whole number.
    """
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise UsageError(f"--workers must be 'auto' or a whole number of processes, got {text!r}")
    return int(text)
