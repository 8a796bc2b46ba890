"""Each rule has a page, and each page a rule."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RULE_IDS = {
    name
    for file in (ROOT / "src" / "feedline" / "profile").glob("*.py")
    for name in re.findall(r'rule="([\w-]+)"', file.read_text())
}


def test_each_rule_has_a_page_in_the_index_and_each_page_a_rule():
    pages = {page.stem for page in (DOCS / "rules").glob("*.md")} - {"README"}
    assert pages == RULE_IDS
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", (DOCS / "rules" / "README.md").read_text()))
    assert linked == RULE_IDS
