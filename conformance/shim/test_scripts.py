"""Programs of a framework, each run on several processes like torchrun does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = json.loads(Path("scripts.json").read_text())


@pytest.mark.parametrize("processes", SCRIPTS["processes"])
@pytest.mark.parametrize("script", SCRIPTS["scripts"])
def test_script(script: str, processes: int) -> None:
    """The program ends with status 0."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(processes), script]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-6000:]
