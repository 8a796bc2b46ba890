"""Running a command in a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def output(self) -> str:
        return self.out + self.err


Command = Callable[..., Ended]
