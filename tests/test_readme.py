"""The README's figures are those that were measured."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versus.json"


@pytest.mark.skipif(not RESULTS.exists(), reason="tests run apart from the repository")
def test_the_table_of_peers_is_the_one_that_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    versus_table = importlib.import_module("versus_table")
    try:
        table = versus_table.summary(json.loads(RESULTS.read_text()))
    finally:
        for name in ("versus_table", "report"):
            sys.modules.pop(name, None)
    assert table in (ROOT / "README.md").read_text()
