"""A rank whose process is killed ends the others with an error."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import preloaded


def free_port() -> int:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return int(there.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_dies_ends_the_others_with_an_error(
    tiny_set: Path, tmp_path: Path, dies: int
) -> None:
    command = [sys.executable, "-m", "feedline", "train", str(tiny_set)]
    command += ["--model", "test_resnet", "--schedule", "32x1000", "--batch-size", "4"]
    command += ["--device", "cpu", "--workers", "0", "--out", str(tmp_path / "out")]
    known = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        preloaded.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | known | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    try:
        assert ranks[0].stdout is not None
        while "epoch 1/" not in (line := ranks[0].stdout.readline()):
            assert line, "it has ended"
        ranks[dies].send_signal(signal.SIGKILL)
        _, said = ranks[1 - dies].communicate()
        assert ranks[1 - dies].returncode == 1
        assert f"another rank does not respond; rank {1 - dies} ends as well" in said
        assert "Traceback" not in said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
