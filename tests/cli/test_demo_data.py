"""`feedline demo-data`."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Command

SMALL = ("--num-classes", 2, "--train-per-class", 2, "--val-per-class", 1)


def test_demo_set_is_written_once_and_reused(feedline: Command, tmp_path: Path) -> None:
    first = feedline("demo-data", tmp_path / "demo", *SMALL, "--json", tmp_path / "a.json")
    assert first.status == 0
    begun, done = first.out.splitlines()
    assert "writing 6 images of 2 classes" in begun
    assert "wrote 6 images of 2 classes" in done
    assert json.loads((tmp_path / "a.json").read_text())["written"] is True
    assert len(list((tmp_path / "demo").rglob("*.jpg"))) == 6

    second = feedline("demo-data", tmp_path / "demo", *SMALL, "--json", tmp_path / "b.json")
    assert second.status == 0
    assert "already there" in second.out
    assert json.loads((tmp_path / "b.json").read_text())["written"] is False
    assert first.err == second.err == ""


def test_foreign_folder_is_rejected(feedline: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    ended = feedline("demo-data", tmp_path)
    assert ended.status == 2
    assert "thesis.tex" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
