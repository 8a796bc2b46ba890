"""Report data as JSON, and its schema, `docs/schema/report.schema.json`.

`python -m feedline.profile.json_form` prints the schema.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import msgspec

from feedline.profile.report_data import ReportData

__all__ = ["as_json", "plain", "schema"]


def as_json(facts: ReportData) -> dict[str, Any]:
    """Convert report data to JSON types; null is a value that was not measured."""
    return plain(facts)


def plain(thing: Any) -> dict[str, Any]:
    """Convert a dataclass to JSON types; NaN and infinity become null."""
    converted: dict[str, Any] = json.loads(msgspec.json.encode(thing))
    return converted


def schema() -> dict[str, Any]:
    """Return the JSON schema, draft 2020-12, of the result of `as_json`."""
    made = json.loads(msgspec.json.encode(msgspec.json.schema(ReportData)))
    for each in made["$defs"].values():
        _describe(each)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "feedline report",
        **made,
    }


def _describe(definition: dict[str, Any]) -> None:
    """Move the documentation of each field from the class's description to the field."""
    about, _, arguments = inspect.cleandoc(definition.get("description", "")).partition("Args:")
    definition["description"] = " ".join(about.split())
    for argument in re.split(r"\n {4}(?! )", arguments):
        names, _, text = argument.partition(": ")
        for name in names.split(", "):
            if name in definition.get("properties", {}):
                definition["properties"][name]["description"] = " ".join(text.split())


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
