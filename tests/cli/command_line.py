"""Running a command in a test."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import psutil

import preloaded
from processes import eventually


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def output(self):
        return self.out + self.err


def assert_refused(ended, *words):
    """Wrong use is an error with these words."""
    assert ended.status == 2, ended
    assert "Traceback" not in ended.err
    for word in words:
        assert word in " ".join(ended.err.split()), ended.err


def interrupt(
    arguments, is_ready, signum, *, script="from feedline.cli.app import main; main()", **env
):
    """Send a signal to a script, with arguments, once its processes are ready; all end by it."""
    run = preloaded.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **{name: str(env[name]) for name in env}},
    )
    process = psutil.Process(run.pid)
    try:
        assert eventually(lambda: is_ready(process.children(recursive=True)), 60)
        family = process.children(recursive=True)
        # As a terminal sends Ctrl-C: to all processes.
        (os.killpg if signum == signal.SIGINT else os.kill)(run.pid, signum)
        out, err = run.communicate(timeout=60)
    finally:
        run.kill()
    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert run.returncode == 128 + signum, err
    return Ended(run.returncode, out, err)


def run_on_terminal(command, env, **streams):
    """Run a command whose stdout and stderr, unless given, are a pseudo-terminal.

    Return the ended process, its piped output and the terminal's.
    """
    ours, theirs = os.openpty()
    streams = {"stdout": theirs, "stderr": theirs, **streams}
    process = preloaded.Popen(list(map(str, command)), env=env, **streams)
    os.close(theirs)
    drawn = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := os.read(ours, 65536):
            drawn += part
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    return process, out or b"", drawn
