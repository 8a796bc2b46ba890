"""Results of checks, and running them even if a disk or a driver hangs.

Guarantees: each check gives one result, whatever happens: an exception or a missed deadline is a
result, too. A fact that several checks need is found once.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

from feedline.text import printable

__all__ = [
    "DEADLINE_S",
    "CheckResult",
    "CheckRun",
    "NoAnswerError",
    "NotMeasuredError",
    "Status",
    "answer_within",
]

Status: TypeAlias = Literal["ok", "note", "warn", "fail", "unknown"]
"""note: no fault, worth knowing. warn: costs speed, or may fail. fail: does not work. unknown: not
measured."""

DEADLINE_S = 10.0
_MAX_CHARACTERS = 1000

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Args:
        status: see `Status`.
        summary: one line.
        details: plain values for programs, with the unit in the key; None if unknown.
        fix: what to do, one line; required for a fault, i.e. a warning or failure.
    """

    status: Status
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)
    fix: str = ""

    def __post_init__(self) -> None:
        if self.is_fault and not self.fix:
            raise ValueError(f"{self.summary}: a warning or failure needs a fix")
        # They may contain text from outside: file names, GPU names, messages of a driver.
        for name in ("summary", "fix"):
            shown = printable(" ".join(getattr(self, name).splitlines()))
            cut = f"{shown[:_MAX_CHARACTERS]}..." if len(shown) > _MAX_CHARACTERS else shown
            object.__setattr__(self, name, cut)

    @property
    def is_fault(self) -> bool:
        """True for a warning or failure."""
        return self.status in ("warn", "fail")


class NotMeasuredError(Exception):
    """A fact is not measured on this machine or with these options; `fix` says how to do it."""

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.reason, self.fix = reason, fix


class NoAnswerError(Exception):
    """Something did not end within its deadline."""


def answer_within(deadline_s: float | None, work: Callable[[], Answer]) -> Answer:
    """Return the result of `work`, or raise its exception, or NoAnswerError after a deadline.

    Then `work` is abandoned in a daemon thread. Without a deadline it is not, as abandoning a
    thread in a library may crash the process at its end.
    """
    if deadline_s is None:
        return work()
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([answer], deadline_s).done:
        raise NoAnswerError(f"no answer within {deadline_s:g} s")
    return answer.result()


class CheckRun:
    """One run of checks.

    The parameters of a function name the facts that it needs. If a fact cannot be found, a
    parameter with a default has its default.

    Args:
        checks: functions that return a result, by ids in kebab-case that never change.
        facts: functions that find a fact, or raise an exception, e.g. NotMeasuredError, by names.
        given: facts that are known.
        deadline_s: of each function; see `answer_within`.
        unlimited: names of functions without a deadline.
    """

    def __init__(
        self,
        checks: Mapping[str, Callable[..., CheckResult]],
        facts: Mapping[str, Callable[..., Any]],
        given: Mapping[str, Any],
        *,
        deadline_s: float = DEADLINE_S,
        unlimited: Collection[str] = (),
    ) -> None:
        self._checks, self._facts = checks, facts
        self._deadline_s, self._unlimited = deadline_s, unlimited
        self._found = dict(given)  # an Exception if a fact cannot be found

    def fact(self, name: str, *default: Any) -> Any:
        """Return a fact, which is found once, or `default` instead of raising its exception."""
        if name not in self._found:
            try:
                self._found[name] = self._call(name, self._facts[name])
            except Exception as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, Exception) and not default:
            raise found
        return default[0] if isinstance(found, Exception) else found

    def check(self, name: str) -> CheckResult:
        """Return the result of a check."""
        try:
            return self._call(name, self._checks[name])
        except NotMeasuredError as error:
            return CheckResult("unknown", error.reason, fix=error.fix)
        except NoAnswerError as error:
            fix = "a file server, a disk or a driver hangs: `dmesg` may name it"
            return CheckResult("fail", str(error), fix=fix)
        except Exception as error:  # an unusual machine may raise anything
            return CheckResult("unknown", f"{type(error).__name__}: {error}")

    def _call(self, name: str, function: Callable[..., Answer]) -> Answer:
        arguments = {}
        for each in inspect.signature(function).parameters.values():
            default = () if each.default is each.empty else (each.default,)
            arguments[each.name] = self.fact(each.name, *default)
        deadline_s = None if name in self._unlimited else self._deadline_s
        return answer_within(deadline_s, partial(function, **arguments))
