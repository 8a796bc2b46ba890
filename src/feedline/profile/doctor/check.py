"""Result of a check, and running checks that may fail or hang."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from feedline.text import printable

__all__ = [
    "DEADLINE_S",
    "CheckResult",
    "Status",
    "found_fault",
    "run_checks",
    "run_with_deadline",
]


Status: TypeAlias = Literal["ok", "note", "warn", "fail", "unknown"]
"""note: no fault, worth knowing. warn: costs speed, or may fail. fail: does not work. unknown: not
measured."""

_ID = re.compile(r"[a-z]+(-[a-z]+)*")
_MAX_CHARACTERS = 1000


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of one check.

    Args:
        id: name in kebab-case, stable between versions.
        status: see `Status`.
        summary: one line.
        details: plain values for programs, with the unit in the key; None if unknown.
        fix: what to do, one line; required for a warning or failure.
    """

    id: str
    status: Status
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"{self.id!r} is not kebab-case")
        if self.status in ("warn", "fail") and not self.fix:
            raise ValueError(f"{self.id}: a warning or failure needs a fix")
        # They may contain text from outside: file names, GPU names, messages of a driver.
        for name in ("summary", "fix"):
            object.__setattr__(self, name, _one_line(getattr(self, name)))


def found_fault(checks: Iterable[CheckResult]) -> bool:
    """Return True if one of them warns or fails."""
    return any(check.status in ("warn", "fail") for check in checks)


def _one_line(text: str) -> str:
    shown = printable(" ".join(text.splitlines()))
    return shown if len(shown) <= _MAX_CHARACTERS else f"{shown[:_MAX_CHARACTERS]}..."


DEADLINE_S = 10.0


def run_with_deadline(work: Callable[[], object]) -> bool:
    """Run `work` with a deadline. Returns True if it ended in time; raises its exceptions.

    If it does not end, it is abandoned in a daemon thread.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    if raised:
        raise raised[0]
    return not thread.is_alive()


def run_checks(
    ids: tuple[str, ...], look: Callable[[], Iterable[CheckResult]], *, bounded: bool = True
) -> list[CheckResult]:
    """Run checks.

    Args:
        ids: their names, in order.
        look: yields their results.
        bounded: wait no longer than the deadline. Not for computations: abandoning a thread in a
            library may crash the process at its end.
    """
    results: dict[str, CheckResult] = {}

    def work() -> None:
        for check in look():
            results[check.id] = check

    missing = partial(
        CheckResult,
        status="fail",
        summary=f"no answer within {DEADLINE_S:g} s",
        fix="a file server, a disk or a driver hangs: `dmesg` may name it",
    )
    answered = True
    try:
        if bounded:
            answered = run_with_deadline(work)
        else:
            work()
    except Exception as error:  # an unusual machine may raise anything
        answered = False
        missing = partial(CheckResult, status="unknown", summary=f"{type(error).__name__}: {error}")
    if answered and set(results) != set(ids):
        raise AssertionError(f"expected the checks {ids}, got {sorted(results)}")
    return [results.get(name) or missing(id=name) for name in ids]
