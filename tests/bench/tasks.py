"""Tasks for process pools, importable by their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from feedline.bench.pool import ProcessState, Send


def add(state: ProcessState, send: Send, value: int) -> int:
    """The sum of all values so far in this process."""
    state["sum"] = state.get("sum", 0) + value
    send(value)
    return int(state["sum"])


def pid(state: ProcessState, send: Send) -> int:
    return os.getpid()


def threads(state: ProcessState, send: Send) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def variable(state: ProcessState, send: Send, name: str) -> str | None:
    return os.environ.get(name)


def fail(state: ProcessState, send: Send, full_disk: bool) -> None:
    if full_disk:
        raise OSError(28, "No space left on device")
    raise KeyError("shelf")


def die(state: ProcessState, send: Send) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt_then(state: ProcessState, send: Send, value: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return value


def sleep_with_a_child(state: ProcessState, send: Send, seconds: float) -> None:
    script = f"import time; time.sleep({seconds})"
    child = subprocess.Popen([sys.executable, "-c", script])
    send((os.getpid(), child.pid))
    time.sleep(seconds)


def limit_files(state: ProcessState, send: Send, size_bytes: int) -> None:
    """Let no file grow beyond this; -1 for no limit. As a full disk, writing then fails."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))
