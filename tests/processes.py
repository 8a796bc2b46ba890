"""Looking at processes from outside, and running scripts that are meant to come to harm."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from feedline import DataLoader

HERE = Path(__file__).parent


def eventually(holds: Callable[[], bool], within_s: float = 30.0) -> bool:
    """Whether something comes to hold. The deadline only bounds a failure."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def all_workers(loader: DataLoader, workers: int) -> list[int]:
    """The process ids of so many workers, each known. Epochs are read until they are.

    The fork server tells the number of a worker some time after the fork.
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
    """What descends from this process, of whatever test: its end may come at any time."""
    return set(descendants(os.getpid()))


def newcomers(before: set[psutil.Process]) -> list[psutil.Process]:
    """What runs of this process's family and was not there before.

    multiprocessing's resource tracker does not count: once started it stays, as is meant.
    """
    return [each for each in own_family() - before if _runs(each) and not _tracks(each)]


def descriptors() -> set[tuple[str, str]]:
    """Which descriptors are open here, and of what; those of earlier tests may close any time."""
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


def _tracks(process: psutil.Process) -> bool:
    try:
        return "resource_tracker" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def shared_memory(processes: list[psutil.Process]) -> set[Path]:
    """The files of multiprocessing's shared memory that processes map, which still have a name."""
    paths: set[Path] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended
            paths |= {Path(each.path) for each in process.memory_maps()}
    return {path for path in paths if path.match("/dev/shm/psm_*") and path.exists()}


def start_script(
    text: str, folder: Path, *, prefix: tuple[str, ...] = (), **options: object
) -> subprocess.Popen[str]:
    """Run a script in a process group of its own, with the tests' datasets at hand."""
    script = folder / "script.py"
    script.write_text(text)
    sources = [str(HERE), str(HERE / "engine"), str(HERE / "dataset")]
    sources += [path for path in [os.environ.get("PYTHONPATH")] if path]
    return subprocess.Popen(
        [*prefix, sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sources), "PYTHONUNBUFFERED": "1"},
        **options,  # type: ignore[call-overload]
    )


def running(script: subprocess.Popen[str], *, least: int = 2) -> list[psutil.Process]:
    """Wait until a script says that it is; its processes, of which there are so many at least."""
    assert script.stdout is not None
    line = script.stdout.readline()
    if line.strip() != "running":
        raise AssertionError(f"the script said {line!r}; {script.communicate()[1]}")
    processes = descendants(script.pid)
    assert len(processes) >= least
    return processes
