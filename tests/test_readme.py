"""The README's figures are those that were measured."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versus.json"
IN_README = ("originals @224", "256 px copies @224", "128 px copies @112")
LOADERS = (
    *("feedline_exact", "torch_pillow", "torch_stock", "timm_prefetch"),
    *("dali", "ffcv", "webdataset"),
)


@pytest.mark.skipif(not RESULTS.exists(), reason="tests run apart from the repository")
def test_the_table_of_peers_is_the_one_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    versus_table = importlib.import_module("versus_table")
    found = json.loads(RESULTS.read_text())
    try:
        table = versus_table.summary(found, IN_README, LOADERS)
    finally:
        for name in ("versus_table", "report"):
            sys.modules.pop(name, None)
    assert table in (ROOT / "README.md").read_text()


@pytest.mark.skipif(not RESULTS.exists(), reason="tests run apart from the repository")
def test_every_range_that_the_readme_quotes_is_in_a_page_of_benchmarks() -> None:
    text = (ROOT / "README.md").read_text()
    quoted = re.findall(r"\d+\.\d+ \(\d+\.\d+-\d+\.\d+\)", text)
    assert len(quoted) >= 3
    page = (ROOT / "docs" / "explanation" / "measurements.md").read_text()
    assert [each for each in quoted if each not in page] == []


@pytest.mark.skipif(not RESULTS.exists(), reason="tests run apart from the repository")
def test_every_page_and_picture_that_the_readme_names_is_there() -> None:
    named = re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(named) > 8
    assert [each for each in named if not (ROOT / each).exists()] == []


@pytest.mark.skipif(not RESULTS.exists(), reason="tests run apart from the repository")
def test_every_test_that_the_table_of_frameworks_names_is_there() -> None:
    page = (ROOT / "docs" / "FRAMEWORKS.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("|") and "test_" in line]
    cited = set(re.findall(r"(?:tests/)?test_\w+", "\n".join(rows)))
    assert len(cited) > 8
    for name in cited:
        folder = ROOT if name.startswith("tests/") else ROOT / "tests" / "frameworks"
        assert (folder / f"{name}.py").is_file(), name
