"""Programs of a framework, each started on several processes as torchrun starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GIVEN = json.loads(Path("scripts.json").read_text())


@pytest.mark.parametrize("processes", GIVEN["processes"])
@pytest.mark.parametrize("script", GIVEN["scripts"])
def test_script(script: str, processes: int) -> None:
    """Ends with status 0."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
