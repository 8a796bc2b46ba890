"""Looks that break or hang."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from feedline.profile.doctor import check as checking
from feedline.profile.doctor.check import CheckResult, run_checks, run_with_deadline


def ok(name: str) -> CheckResult:
    return CheckResult(id=name, status="ok", summary="fine")


@pytest.mark.parametrize("bounded", [True, False])
def test_checks_are_in_requested_order(bounded: bool) -> None:
    found = run_checks(("one", "two"), lambda: [ok("two"), ok("one")], bounded=bounded)
    assert found == [ok("one"), ok("two")]


@pytest.mark.parametrize("bounded", [True, False])
def test_failing_check_keeps_partial_result_and_names_reason(bounded: bool) -> None:
    def look() -> Iterator[CheckResult]:
        yield ok("one")
        raise OSError(5, "Input/output error")

    one, two = run_checks(("one", "two"), look, bounded=bounded)
    assert one == ok("one")
    assert (two.status, two.summary) == ("unknown", "OSError: [Errno 5] Input/output error")


def test_endless_check_fails_without_blocking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "DEADLINE_S", 0.05)
    go_on = threading.Event()

    def look() -> Iterator[CheckResult]:
        yield ok("one")
        go_on.wait()

    try:
        one, two = run_checks(("one", "two"), look)
    finally:
        go_on.set()
    assert one == ok("one")
    assert (two.status, two.summary) == ("fail", "no answer within 0.05 s")


@pytest.mark.parametrize("came", [[], ["one", "two", "three"], ["one", "other"]])
def test_check_with_unexpected_names_is_a_bug(came: list[str]) -> None:
    with pytest.raises(AssertionError, match="two"):
        run_checks(("one", "two"), lambda: map(ok, came))


def test_exit_exceptions_are_not_caught_as_failed_checks() -> None:
    def look() -> Iterator[CheckResult]:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        run_checks(("one",), look)
    with pytest.raises(SystemExit):
        run_with_deadline(lambda: exit(3))
