"""Properties of a check, independent of its result."""

from __future__ import annotations

import pytest

from feedline.profile.doctor.check import CheckResult, Status, found_fault


@pytest.mark.parametrize("name", ["", "Cores", "usable_cores", "-cores", "cores-", "cores 2"])
def test_check_names_are_words_with_hyphens(name: str) -> None:
    with pytest.raises(ValueError, match="kebab-case"):
        CheckResult(id=name, status="ok", summary="fine")


@pytest.mark.parametrize("status", ["warn", "fail"])
def test_failure_has_a_remedy(status: Status) -> None:
    with pytest.raises(ValueError, match="fix"):
        CheckResult(id="cores", status=status, summary="few")
    assert found_fault([CheckResult(id="cores", status=status, summary="few", fix="get more")])


def test_notes_and_unmeasured_checks_are_not_failures() -> None:
    statuses: tuple[Status, ...] = ("ok", "note", "unknown")
    assert not found_fault(CheckResult(id="x", status=each, summary="") for each in statuses)


def test_foreign_text_stays_on_one_line() -> None:
    check = CheckResult(
        id="x",
        status="warn",
        summary="two\nlines\r\nand \x1b[31mred\x07, \udcff, \u202eback",
        fix="a\tb\u2028c",
    )
    assert check.summary == "two lines and \\x1b[31mred\\x07, \\udcff, \\u202eback"
    assert check.fix == "a\\tb c"
    long = CheckResult(id="x", status="ok", summary="m" * 5000)
    assert len(long.summary) == 1003
