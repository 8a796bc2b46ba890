"""Scripts on several ranks, as torchrun starts them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import preloaded


def said_by_ranks(
    script: str,
    world_size: int = 2,
    *arguments: str,
    timeout_s: float = 280,
    cwd: Path | None = None,
) -> list[Any]:
    """The last line that each rank prints, as JSON; each must end well."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {
        **os.environ,
        "ACCELERATE_USE_CPU": "1",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [
        preloaded.Popen(
            [sys.executable, "-c", script, *arguments],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        said = [rank.communicate(timeout=timeout_s) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, errors) in zip(ranks, said, strict=True):
        assert rank.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in said]
