"""Planted bottlenecks are named, from a real loop to its verdict."""

import json
import sys
from pathlib import Path

import pytest

import preloaded
from slow import slow

LABORATORY = Path(__file__).parents[2] / "laboratory" / "run.py"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("raising", "inconclusive"),
        *slow(
            ("broken-off", "inconclusive"),
            ("slow-collate", "collate"),
            ("loader-of-an-epoch", "loader-rebuilt"),
            ("dying-workers", "workers-restarted"),
        ),
    ],
)
def test_planted_bottleneck_is_named_first(name, planted, tmp_path):
    file = tmp_path / "table.json"
    command = [sys.executable, str(LABORATORY), "--only", name, "--named-only"]
    command += ["--patience", "0", "--json", str(file)]
    done = preloaded.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["planted"], row["named"]) == (planted, planted)
