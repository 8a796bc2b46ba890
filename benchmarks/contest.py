"""Peers in processes of their own, measured in turn.

Guarantees: one works while all others are idle; what a peer made ahead while idle is used up
before its turn counts; memory and CPU time are those of all its processes; when a contest ends,
however it ends, no process and no file of it is left.
Relies on: Linux's /proc for the memory that processes share (PSS).
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
    """What a peer did at one work; a list has one figure a round.

    Args:
        peer: its module's name.
        missing: why it did not take part, or nothing.
        rates: images per second.
        cpu_s: CPU seconds per 1000 images, of all its processes.
        pss_mb: megabytes of memory after each turn, of all its processes, shared pages divided
            among those that share them (PSS).
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
        """Leave the rounds so far out."""
        self.rates, self.cpu_s, self.pss_mb = [], [], []


class Contestant:
    """A peer's process."""

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
        with contextlib.suppress(BrokenPipeError):  # its missing answer tells
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def turn(self, lead_s: float, seconds: float) -> None:
        """Measure for so many seconds, and add to the result."""
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
        """End it and all processes it started."""
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
    """CPU time so far of processes and of the children that they have waited for."""
    total = 0.0
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def settle(family: list[psutil.Process]) -> None:
    """Wait until processes have made what they make ahead and stand still."""
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
    """Start peers, one after the other, and end them all."""
    started: list[Contestant] = []
    try:
        for peer, work in zip(peers, works, strict=True):
            started.append(Contestant(peer, work))
            settle(started[-1]._family())
        yield started
    finally:
        for one in started:
            one.close()
