"""Each rule has a page, and each page a rule."""

from __future__ import annotations

import re
from pathlib import Path

from feedline.profile.rules.all_rules import RULE_IDS, RULES

DOCS = Path(__file__).parents[2] / "docs"


def test_each_rule_has_a_page_and_each_page_a_rule() -> None:
    pages = {page.stem for page in (DOCS / "rules").glob("*.md")} - {"README"}
    assert pages == set(RULE_IDS)


def test_the_index_links_to_the_page_of_each_rule() -> None:
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", (DOCS / "rules" / "README.md").read_text()))
    assert linked == set(RULE_IDS)


def test_the_code_names_no_rule_without_an_id() -> None:
    rules = Path(__file__).parents[2] / "src" / "feedline" / "diagnose"
    named = {
        name
        for file in rules.rglob("*.py")
        for name in re.findall(r'rule="([\w-]+)"', file.read_text())
    }
    assert named == set(RULE_IDS)
    assert len(RULES) == len(set(RULES))
