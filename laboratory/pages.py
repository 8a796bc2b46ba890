"""Write the laboratory's results into the pages of the rules.

    python laboratory/pages.py FILE        FILE from `laboratory/run.py --json FILE`

Replaces the list under "Measured" in each rule's page, and the machine in docs/rules/README.md.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent.parent / "docs" / "rules"
_MACHINE = re.compile(r"(?<=<!-- machine -->).*?(?=<!-- end -->)", re.S)
_MEASURED = re.compile(r"(?<=\*\*Measured\*\*\n\n).*", re.S)


def main(file: Path) -> None:
    """Write the results of a run."""
    results = json.loads(file.read_text())
    machine = results["machine"]
    text = f"{machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}"
    index = PAGES / "README.md"
    index.write_text(_MACHINE.sub(lambda _: text, index.read_text()))
    for page in PAGES.glob("*.md"):
        rows = [row for row in results["rows"] if row["planted"] == page.stem]
        if rows:
            lines = "".join(_line(row) for row in rows)
            page.write_text(_MEASURED.sub(lambda _, lines=lines: lines, page.read_text()))


def _line(row: dict[str, Any]) -> str:
    what = " ".join(row["what"].split()).rstrip(".")
    figures = []
    if row["predicted"]:
        span = f"{row['low']:.2f} to {row['high']:.2f}"
        figures.append(f"predicted {row['predicted']:.2f} ({span})")
    if row["measured"]:
        figures.append(f"measured {row['measured']:.2f}")
    figures = figures or [f"named {row['named']}"]
    return f"- {what} ({row['over']}): {', '.join(figures)}\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
