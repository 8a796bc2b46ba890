"""Running a command in a test."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import preloaded


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def output(self) -> str:
        return self.out + self.err


Command = Callable[..., Ended]


def assert_refused(ended: Ended, *words: str) -> None:
    """Wrong use is an error with these words."""
    assert ended.status == 2, ended
    assert "Traceback" not in ended.err
    for word in words:
        assert word in " ".join(ended.err.split()), ended.err


def run_on_terminal(
    command: Sequence[object], env: dict[str, str], **streams: Any
) -> tuple[Any, bytes, bytes]:
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
