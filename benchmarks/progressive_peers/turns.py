"""Run contestants in processes of their own, and measure the limit that defines their speed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from contest import Contestant
from peers.work import Work as PeerWork

from progressive_peers.work import Work

__all__ = ["limit", "run"]

_LEAD_S = 0.5


def limit(work: Work, seconds: float) -> dict[str, float]:
    """Images per second of bare processes, by each size of a schedule in turn."""
    rates = {}
    for stage in work.stages:
        bare = Contestant(
            "limit",
            PeerWork(
                kind="jpeg",
                folder=work.folder,
                size=stage.size,
                batch_size=stage.batch_size,
                workers=work.workers,
                repeat=1,
                scratch="",
            ),
        )
        try:
            bare.turn(_LEAD_S, seconds)
            if bare.result.missing:
                raise RuntimeError(f"the limit cannot be measured: {bare.result.missing}")
            rates[str(stage.size)] = bare.result.rates[-1]
        finally:
            bare.close()
    return rates


def run(contestant: str, work: Work, **step: Any) -> dict[str, Any]:
    """Run a contestant; return the output of `drive.py`, or {"missing": reason}.

    When this returns or raises, no process of the run remains.
    """
    order = json.dumps({"work": asdict(work), **step})
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "progressive_peers.drive", contestant, order],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=Path(__file__).parents[1],
            start_new_session=True,  # so that the whole group can be killed
        )
        try:
            said, _ = process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            log.seek(0)
            last = log.read().strip().splitlines()[-1:] or ["it said nothing"]
            return {"missing": f"ended with status {process.returncode}: {last[0]}"}
        answer: dict[str, Any] = json.loads(said)
        return answer
