"""What pools are made to do in the tests; importable by their processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from feedline.bench.pool import Keep, Tell


def add(keep: Keep, tell: Tell, value: int) -> int:
    """The sum of all values so far in this process."""
    keep["sum"] = keep.get("sum", 0) + value
    tell(value)
    return int(keep["sum"])


def pid(keep: Keep, tell: Tell) -> int:
    return os.getpid()


def threads(keep: Keep, tell: Tell) -> str | None:
    return os.environ.get("OMP_NUM_THREADS")


def variable(keep: Keep, tell: Tell, name: str) -> str | None:
    return os.environ.get(name)


def fail(keep: Keep, tell: Tell, full_disk: bool) -> None:
    if full_disk:
        raise OSError(28, "No space left on device")
    raise KeyError("shelf")


def die(keep: Keep, tell: Tell) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt_then(keep: Keep, tell: Tell, value: int) -> int:
    os.kill(os.getpid(), signal.SIGINT)
    return value


def sleep_with_a_child(keep: Keep, tell: Tell, seconds: float) -> None:
    script = f"import time; time.sleep({seconds})"
    child = subprocess.Popen([sys.executable, "-c", script])
    tell((os.getpid(), child.pid))
    time.sleep(seconds)


def limit_files(keep: Keep, tell: Tell, size_bytes: int) -> None:
    """Let no file grow beyond this; -1 for no limit. As a full disk, writing then fails."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))
