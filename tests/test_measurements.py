"""The tables of the measurements page are those of the benchmarks' results."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


pytestmark = pytest.mark.skipif(
    not BENCHMARKS.is_dir(), reason="tests run apart from the repository"
)


def test_tables_match_results(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    measurements = importlib.import_module("measurements")
    page = measurements.PAGE.read_text()
    assert page == measurements.fill_tables(page)
    for name in ("measurements", "caches_table", "versus_table", "report"):
        sys.modules.pop(name, None)
