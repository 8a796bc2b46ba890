"""A verdict that is printed, and that a notebook shows."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from runs import UNKNOWN, verdict

from feedline.report.why import Why, show, verdict_text


def test_a_verdict_is_text_of_at_most_100_columns() -> None:
    text = verdict_text(verdict())
    assert text == str(Why(verdict())) == repr(Why(verdict()))
    assert text.startswith("Highly input-bound: 41% of the time is waiting for data.")
    assert "1. decode-bound" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_verdict_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show(UNKNOWN)
    printed = capsys.readouterr().out
    assert printed.startswith("Inconclusive: too little was measured")
    assert printed.count("not measured") >= 3


def test_a_notebook_gets_it_as_html(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Why] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    show(verdict())
    assert capsys.readouterr().out == ""
    (why,) = shown
    assert "Highly input-bound" in why._repr_html_()


def test_ipython_in_a_terminal_gets_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    show(verdict())
    assert "Highly input-bound" in capsys.readouterr().out
