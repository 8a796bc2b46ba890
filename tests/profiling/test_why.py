"""A verdict that is printed, and that a notebook shows."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from runs import UNKNOWN, verdict
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset

import feedline
from feedline.profile.why import DiagnosisView, diagnosis_text, show


def test_a_verdict_is_text_of_at_most_100_columns() -> None:
    text = diagnosis_text(verdict())
    assert text == str(DiagnosisView(verdict())) == repr(DiagnosisView(verdict()))
    assert text.startswith("Highly input-bound: data wait is 41%")
    assert "1. decode-bound" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_verdict_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show(UNKNOWN)
    printed = capsys.readouterr().out
    assert printed.startswith("Inconclusive")
    assert "There are too few steps." in printed


def test_notebook_shows_html(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[DiagnosisView] = []
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


def test_loaders_have_a_why_method(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = TensorDataset(torch.arange(12))
    with feedline.DataLoader(numbers, batch_size=2) as loader:
        assert len(list(loader)) == 6
        loader.why()
    assert "inconclusive" in capsys.readouterr().out  # six steps are too few
    watched = feedline.watch(TorchLoader(numbers, batch_size=2), name="of a test")
    assert len(list(watched)) == 6
    watched.why()
    assert "inconclusive" in capsys.readouterr().out
