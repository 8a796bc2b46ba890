"""Writes the laboratory's figures into the documentation.

    python laboratory/pages.py FILE        of `laboratory/run.py --json FILE`

The table of docs/rules/README.md and the line "In the laboratory" of each rule's page are made
anew; all else in these pages is written by hand.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent / "docs" / "rules"
_TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end of the table -->)", re.S)
_LINE = re.compile(r"^\*\*In the laboratory\*\*.*$", re.M)


def main(file: Path) -> None:
    """Write them."""
    table = json.loads(file.read_text())
    rows, machine = table["rows"], table["machine"]
    index = PAGES / "README.md"
    index.write_text(_TABLE.sub(lambda _: _table(rows, machine), index.read_text()))
    for page in PAGES.glob("*.md"):
        own = [row for row in rows if row["planted"] == page.stem]
        if own:
            page.write_text(_LINE.sub(lambda _, own=own: _line(own), page.read_text()))


def _table(rows: list[dict[str, Any]], machine: dict[str, Any]) -> str:
    lines = [
        "",
        f"On {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}:",
        "",
        "| situation | over | planted | named first | gain predicted | gain measured |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        span = f" ({row['low']:.2f} to {row['high']:.2f})" if row["predicted"] else ""
        lines.append(
            f"| {_first(row['what'])} | {row['over']} | {row['planted']} | {row['named']} | "
            f"{_gain(row['predicted'])}{span} | {_gain(row['measured'])} |"
        )
    return "\n".join(lines) + "\n\n"


def _line(rows: list[dict[str, Any]]) -> str:
    said = []
    for row in rows:
        text = f"{_first(row['what'])} ({row['over']})"
        if row["measured"] and row["predicted"]:
            text += f": predicted {row['predicted']:.2f}, measured {row['measured']:.2f}"
        said.append(text.rstrip("."))
    return "**In the laboratory** " + "; ".join(said) + "."


def _first(what: str) -> str:
    return " ".join(what.split()).rstrip(".")


def _gain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
