"""Which rank has ended: told by its process, and said by those that are left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from feedline.errors import SampleError
from feedline.train.ranks import find_ended, is_lost_connection


def test_a_process_that_has_ended_is_named() -> None:
    here = psutil.Process()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        others = {2: here, 3: psutil.Process(process.pid)}
        assert find_ended(others, within_s=0.0) is None
        process.kill()
        # Not waited for: it is a zombie until then.
        assert find_ended(others, within_s=30.0) == 3
    assert find_ended(others, within_s=0.0) == 3


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[/gloo/transport/tcp/pair.cc:545] Connection closed by peer"), True),
        (torch.distributed.DistNetworkError("gone"), True),
        (RuntimeError("shapes do not fit"), False),
        (SampleError("gloomy.jpg: gloo"), False),
        (ValueError("gloo"), False),
    ],
)
def test_only_a_lost_connection_counts(error: Exception, lost: bool) -> None:
    assert is_lost_connection(error) is lost


def free_port() -> int:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return int(there.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_dies_ends_the_others_with_its_name(
    tiny_set: Path, tmp_path: Path, dies: int
) -> None:
    command = [sys.executable, "-m", "feedline.cli.start", "train", str(tiny_set)]
    command += ["--model", "test_resnet", "--schedule", "32x1000", "--batch-size", "4"]
    command += ["--device", "cpu", "--workers", "0", "--out", str(tmp_path / "out")]
    known = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
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
        assert f"rank {dies} (process {ranks[dies].pid} on " in said
        assert "Traceback" not in said
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
