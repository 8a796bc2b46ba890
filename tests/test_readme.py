"""The README's figures are those that were measured, and its links lead somewhere."""

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MEASUREMENTS = ROOT / "docs" / "explanation" / "measurements.md"

pytestmark = pytest.mark.skipif(
    not MEASUREMENTS.exists(), reason="tests run apart from the repository"
)


def test_every_range_in_the_readme_is_in_the_measurements():
    quoted = re.findall(r"\d+\.\d+ \(\d+\.\d+-\d+\.\d+\)", README.read_text())
    assert len(quoted) >= 3
    measured = MEASUREMENTS.read_text()
    assert [each for each in quoted if each not in measured] == []


def test_tables_of_the_measurements_are_those_of_the_benchmarks_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    measurements = importlib.import_module("measurements")
    page = measurements.PAGE.read_text()
    assert page == measurements.fill_tables(page)
    for name in ("measurements", "caches_table", "versus_table", "report"):
        sys.modules.pop(name, None)


def test_every_page_and_picture_that_the_readme_names_exists():
    named = re.findall(r"\]\((?!http)([^)#]+)", README.read_text())
    assert len(named) > 8
    assert [each for each in named if not (ROOT / each).exists()] == []
