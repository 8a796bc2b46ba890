"""Looking at processes from outside, and running scripts that are meant to come to harm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import preloaded
from feedline import DataLoader

HERE = Path(__file__).parent
NEW_PYTHON = ("env",)
"""Prefix of a script that needs a new interpreter: it tests imports, or their end."""


def eventually(holds: Callable[[], bool], within_s: float = 30.0) -> bool:
    """Return True once a condition holds. The deadline only bounds a failure."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def all_workers(loader: DataLoader, workers: int) -> list[int]:
    """Process ids of this many workers, after reading enough epochs to know them all.

    The fork server reports the id of a worker some time after the fork.
    """
    for _ in range(1000):
        if len(pids := loader.worker_pids) == workers:
            return pids
        for _ in loader:
            pass
    raise AssertionError(f"{loader.worker_pids} are not {workers} workers")


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def own_family() -> set[psutil.Process]:
    """Descendants of this process, including those of other tests, which may end at any time."""
    return set(descendants(os.getpid()))


def newcomers(before: set[psutil.Process]) -> list[psutil.Process]:
    """New running descendants of this process.

    Servers of multiprocessing and of `preloaded` do not count: they are meant to stay once started.
    """
    return [each for each in own_family() - before if _runs(each) and not _stays(each)]


def descriptors() -> set[tuple[str, str]]:
    """Open file descriptors with their targets; those of earlier tests may close at any time."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def gone(processes: list[psutil.Process]) -> bool:
    return not any(map(_runs, processes))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stays(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
        return "resource_tracker" in command or preloaded.__file__ in command
    except psutil.NoSuchProcess:
        return False


class Child:
    """A fork of this process that lives until `end`."""

    def __init__(self) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            signal.alarm(60)  # in case the test fails and ends none
            signal.pause()
            os._exit(0)

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def shared_memory(processes: list[psutil.Process]) -> set[Path]:
    """Files of multiprocessing's shared memory that processes map and that still have a name."""
    paths: set[Path] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended
            paths |= {Path(each.path) for each in process.memory_maps()}
    return {path for path in paths if path.match("/dev/shm/psm_*") and path.exists()}


def start_script(
    text: str, folder: Path, *, by: str = "file", prefix: tuple[str, ...] = (), **options: object
) -> subprocess.Popen[str]:
    """Run a script in its own process group, with the tests' modules importable."""
    script = folder / "script.py"
    script.write_text(text)
    given = {
        "file": [str(script)],
        "module": ["-m", f"{folder.name}.script"],
        "command": ["-c", text],
        "stdin": ["-"],
    }
    sources = [str(folder), str(folder.parent), str(HERE), str(HERE / "engine")]
    sources += [path for path in [os.environ.get("PYTHONPATH")] if path]
    return preloaded.Popen(
        [*prefix, sys.executable, *given[by]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONUNBUFFERED": "1"},
        **options,  # type: ignore[call-overload]
    )


def outcome(text: str, folder: Path, *, by: str = "file", **options: object) -> tuple[str, str]:
    """Output and errors of a script."""
    script = start_script(text, folder, by=by, stdin=subprocess.PIPE, **options)  # type: ignore[arg-type]
    try:
        output, errors = script.communicate(text if by == "stdin" else None, timeout=200)
    finally:
        script.kill()
    return output.strip(), errors


def running(script: subprocess.Popen[str], *, least: int = 2) -> list[psutil.Process]:
    """Wait until a script reports that it runs; return its processes, at least this many."""
    assert script.stdout is not None
    line = script.stdout.readline()
    if line.strip() != "running":
        raise AssertionError(f"the script said {line!r}; {script.communicate()[1]}")
    processes = descendants(script.pid)
    assert len(processes) >= least
    return processes
