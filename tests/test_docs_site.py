"""The documentation builds as a site without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
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
    assert "feedline.tune" in (tmp_path / "STORY" / "index.html").read_text(), "the notebook"
    assert "OneCycleLR" in (tmp_path / "index.html").read_text(), "the example is in it"
