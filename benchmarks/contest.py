"""Run peers in processes of their own and measure them alternately.

Guarantees: only one peer works at a time; batches prefetched while idle are consumed before a turn
is measured; memory and CPU time include all processes of a peer; when a contest ends, for whatever
reason, no process and no file of it remains.
Relies on: Linux's /proc for shared memory of processes (PSS).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from peers.work import Work

__all__ = ["Contestant", "Result", "contestants", "settle"]

_IDLE_CORES = 0.05
_SETTLE_S = 15.0


@dataclass
class Result:
    """Measurements of a peer at one task; lists have one entry per round.

    Args:
        peer: name of its module.
        missing: why it could not run, or "".
        rates: images per second.
        cpu_s: CPU seconds per 1000 images, over all its processes.
        pss_mb: memory of all its processes after each turn, in megabytes; shared pages are divided
            among their users (PSS).
    """

    peer: str
    name: str = ""
    missing: str = ""
    pixels: str = ""
    version: str = ""
    dtype: str = ""
    first_batch_s: float | None = None
    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    pss_mb: list[float] = field(default_factory=list)

    def forget(self) -> None:
        """Discard the rounds so far."""
        self.rates, self.cpu_s, self.pss_mb = [], [], []


class Contestant:
    """The process of a peer."""

    def __init__(self, peer: str, work: Work) -> None:
        self.result = Result(peer)
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peers.serve", peer, work.text()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            cwd=Path(__file__).parent,
        )
        for name, value in self._answer().items():
            if hasattr(self.result, name):
                setattr(self.result, name, value)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        if line := self._process.stdout.readline():
            answer: dict[str, Any] = json.loads(line)
            return answer
        self._process.wait()
        self._complaints.seek(0)
        last = self._complaints.read().strip().splitlines()[-1:] or ["it said nothing"]
        return {"missing": f"ended with status {self._process.returncode}: {last[0]}"}

    def _order(self, **order: float) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # the missing answer reports it
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def turn(self, lead_s: float, seconds: float) -> None:
        """Measure for `seconds`; append to the result."""
        if self.result.missing:
            return
        self._order(lead_s=lead_s, seconds=seconds)
        self._answer()
        before = self._cpu_s()
        answer = self._answer()
        cpu_s = self._cpu_s() - before
        if missing := answer.get("missing"):
            self.result.missing = missing
            return
        self.result.rates.append(answer["images"] / answer["seconds"])
        self.result.cpu_s.append(cpu_s / answer["images"] * 1000)
        self.result.pss_mb.append(self._pss_mb())
        settle(self._family())

    def _family(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self._process.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _cpu_s(self) -> float:
        return cpu_seconds(self._family())

    def _pss_mb(self) -> float:
        pss = 0
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                pss += process.memory_full_info().pss
        return pss / 1e6

    def close(self) -> None:
        """End the process and all its descendants."""
        family = self._family()
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._complaints.close()


def cpu_seconds(family: list[psutil.Process]) -> float:
    """CPU time of processes and of the children they have waited for."""
    total = 0.0
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def settle(family: list[psutil.Process]) -> None:
    """Wait until the processes have finished prefetching and idle."""
    deadline = time.monotonic() + _SETTLE_S
    before = cpu_seconds(family)
    while time.monotonic() < deadline:
        time.sleep(0.2)
        now = cpu_seconds(family)
        if now - before < 0.2 * _IDLE_CORES:
            return
        before = now


@contextlib.contextmanager
def contestants(peers: list[str], works: list[Work]) -> Iterator[list[Contestant]]:
    """Start the peers one after the other; end them all on exit."""
    processes: list[Contestant] = []
    try:
        for peer, work in zip(peers, works, strict=True):
            processes.append(Contestant(peer, work))
            settle(processes[-1]._family())
        yield processes
    finally:
        for one in processes:
            one.close()
