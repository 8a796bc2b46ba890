"""What a look at one thing came to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

__all__ = ["Check", "Status", "found_fault"]

Status: TypeAlias = Literal["ok", "note", "warn", "fail", "unknown"]
"""note: worth knowing, and no fault. warn: it costs speed, or may break something. fail: it does
not work. unknown: it was not measured."""

_ID = re.compile(r"[a-z]+(-[a-z]+)*")
_MOST_CHARACTERS = 1000


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a look at one thing came to.

    Args:
        id: what it is called, in kebab-case: it stays the same from version to version.
        status: see `Status`.
        summary: one line.
        details: plain values for programs, with the unit in the key: None for what is not known.
        fix: what to do, one line; a warning and a failure have one.
    """

    id: str
    status: Status
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"{self.id!r} is no name in kebab-case")
        if self.status in ("warn", "fail") and not self.fix:
            raise ValueError(f"{self.id} is a fault, and says no remedy")
        # What others have written may stand in them: names of files, of GPUs, messages of a driver.
        for name in ("summary", "fix"):
            object.__setattr__(self, name, _one_line(getattr(self, name)))


def found_fault(checks: Iterable[Check]) -> bool:
    """Whether one of them warns or fails."""
    return any(check.status in ("warn", "fail") for check in checks)


def _one_line(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    shown = "".join(
        letter if letter.isprintable() else ascii(letter)[1:-1]
        for letter in " ".join(text.splitlines())
    )
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."
