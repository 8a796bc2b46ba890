"""The documentation builds as a site without a warning: no dead link, no page without an entry."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "reference" / "loading" / "index.html").read_text()
    assert "persistent_workers" in page
    home = (tmp_path / "index.html").read_text()
    assert "peers.png" in home
    assert home.count('<div class="highlight">') >= 4, "pip install and the README's three blocks"


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs" / "reference").glob("*.md")), ids=lambda page: page.stem
)
def test_reference_pages_list_names_and_signatures_of_the_code(page):
    pytest.importorskip("timm")
    write = runpy.run_path(str(ROOT / "docs" / "reference_index.py"))["with_index"]
    text = page.read_text()
    assert text == write(text), "run: python docs/reference_index.py"
    if "\n::: " in text:
        assert text.count("](#feedline.") >= text.count("\n::: ")
