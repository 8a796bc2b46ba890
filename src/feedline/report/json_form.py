"""The facts of a report as JSON, and the schema of it, `docs/schema/report.schema.json`.

`python -m feedline.report.json_form` prints the schema.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import msgspec

from feedline.report.facts import Facts

__all__ = ["as_json", "plain", "schema"]


def as_json(facts: Facts) -> dict[str, Any]:
    """The facts as they go into a JSON file; null stands for what was not measured."""
    return plain(facts)


def plain(thing: Any) -> dict[str, Any]:
    """A dataclass as JSON has it; what no JSON can hold, NaN and infinity, is null."""
    built: dict[str, Any] = json.loads(msgspec.json.encode(thing))
    return built


def schema() -> dict[str, Any]:
    """The JSON schema, draft 2020-12, of what `as_json` gives."""
    made = json.loads(msgspec.json.encode(msgspec.json.schema(Facts)))
    for each in made["$defs"].values():
        _describe(each)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "feedline report",
        **made,
    }


def _describe(definition: dict[str, Any]) -> None:
    """Take the description of a class apart: what it says of a field goes to the field."""
    about, _, arguments = inspect.cleandoc(definition.get("description", "")).partition("Args:")
    definition["description"] = " ".join(about.split())
    for argument in re.split(r"\n {4}(?! )", arguments):
        names, _, said = argument.partition(": ")
        for name in names.split(", "):
            if name in definition.get("properties", {}):
                definition["properties"][name]["description"] = " ".join(said.split())


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
