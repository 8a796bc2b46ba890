"""The JSON form, and its schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from runs import MACHINE, UNKNOWN, recorded, verdict

from feedline.profile.json_form import as_json, schema
from feedline.profile.report_data import ReportData, build_report
from feedline.timing.run import Run

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "report.schema.json"


@pytest.fixture(scope="module")
def facts() -> ReportData:
    return build_report(recorded(), verdict())


@pytest.mark.skipif(not SCHEMA.exists(), reason="tests run apart from the repository")
def test_published_schema_matches_the_code() -> None:
    said = "write it with python -m feedline.profile.json_form > docs/schema/report.schema.json"
    assert json.loads(SCHEMA.read_text()) == schema(), said


def test_output_matches_schema(facts: ReportData) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    validator = jsonschema.Draft202012Validator(schema())
    for each in (facts, build_report(Run(machine=MACHINE), UNKNOWN)):
        assert list(validator.iter_errors(as_json(each))) == []
    broken = as_json(facts)
    broken["findings"][0]["gain"]["low"] = "much"
    assert len(list(validator.iter_errors(broken))) == 1


def test_documented_fields_are_present(facts: ReportData) -> None:
    said = as_json(facts)
    assert said["bound"] == "highly input-bound"
    assert said["time_split_s"] == {"starts": 0, "wait": 0.66, "copy": None, "compute": 0.94}
    (finding,) = said["findings"]
    assert list(finding) == ["rule", "cause", "evidence", "fix", "gain"]
    assert finding["rule"] == "decode-bound"
    assert finding["gain"] == {"predicted": 1.8, "low": 1.6, "high": 2.0}
    (phase,) = said["phases"]
    assert phase["copy_ms"] is None


def test_non_finite_numbers_are_null(facts: ReportData) -> None:
    said = as_json(replace(facts, seconds=float("nan"), wait_pct=float("inf")))
    assert said["seconds"] is said["wait_pct"] is None
    json.dumps(said, allow_nan=False)
