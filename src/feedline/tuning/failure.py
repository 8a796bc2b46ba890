"""What a step or a loader has raised in the middle of a search.

Guarantees: what is shown has the user's own frames, and a worker's traceback once; none of
feedline's or torch's above them.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import torch

import feedline

__all__ = ["Failure"]

_OWN = tuple(f"{Path(module.__file__ or '').parent}/" for module in (feedline, torch))
_REHEARSAL = str(Path(__file__).with_name("rehearsal.py"))
_FAR = "\nOriginal Traceback"  # in what a worker's exception says, as torch has it
_MOST = 300  # characters of a message that are repeated


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of the user's code.

    Args:
        error: what was raised.
        where: by what.
    """

    error: Exception
    where: Literal["the step", "loading a batch"]

    @property
    def said(self) -> str:
        """What raised, and what it said, in a line."""
        text, kind = str(self.error).strip(), type(self.error).__name__
        if _FAR in f"\n{text}":
            last = text.splitlines()[-1]  # of the worker's traceback
        else:
            last = f"{kind}: {text.splitlines()[0]}" if text else kind
        return f"{self.where} raised {last[:_MOST]}"

    @property
    def shown(self) -> str:
        """The traceback, as far as it is of the user's code."""
        error = self.error
        lines = traceback.format_exception(type(error), error, _of_user(error.__traceback__))
        return "".join(lines).rstrip()


def _of_user(frames: TracebackType | None) -> TracebackType | None:
    """The frames from the first one of the user's on, below those of a rehearsal; or none."""
    below, at = frames, frames
    while at is not None:
        if at.tb_frame.f_code.co_filename == _REHEARSAL:
            below = at.tb_next
        at = at.tb_next
    while below is not None and below.tb_frame.f_code.co_filename.startswith(_OWN):
        below = below.tb_next
    return below
