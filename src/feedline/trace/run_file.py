"""A run as a file: `trace.json`, of rank 1 `trace-rank1.json`, and so on.

Guarantees: a file is there whole or as it was before; what is read has the form that `run.Run`
says, of a version that this feedline knows, or is refused by name; no more than `MAX_BYTES` are
read.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from feedline.errors import UsageError
from feedline.system import unwritten
from feedline.trace.run import RUN_VERSION, Run
from feedline.trace.stage_page import OCTAVES

__all__ = ["MAX_BYTES", "RUN_FILE", "check_folder", "read_run", "run_file", "write_run"]

RUN_FILE = "trace.json"
MAX_BYTES = 16 << 20
"""More than a run with the most passes, stages and events that a recorder keeps."""

_WHAT = "feedline run"
_MOST = 1e18  # of anything that is counted or timed
_MOST_CORES = 1 << 16
_DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Head(msgspec.Struct):
    what: str = ""
    version: int = 0


class _File(msgspec.Struct):
    run: Run
    what: str = _WHAT
    version: int = RUN_VERSION


def run_file(rank: int) -> str:
    """What the file of a rank is called."""
    return RUN_FILE if rank == 0 else f"trace-rank{rank}.json"


def check_folder(folder: Path) -> None:
    """Make a folder for runs, and see whether a file can be written there.

    Raises:
        UsageError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"a run cannot be written to {str(folder)!r}: {error.strerror}; name another folder"
        ) from error


def write_run(run: Run, folder: Path) -> Path:
    """Write a run into a folder, which is made; the file that was there is replaced in one step.

    Raises:
        UsageError: it cannot be written there.
    """
    file = folder / run_file(run.rank)
    partial = folder / f".{file.name}.{os.getpid()}.partial"
    data = _encoded(run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        os.replace(partial, file)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise UsageError(
            f"the run cannot be written to {str(file)!r}: {unwritten(file, len(data), error)}; "
            "free some space there, or name another folder"
        ) from error
    return file


def _encoded(run: Run) -> bytes:
    try:
        return msgspec.json.encode(_File(run))
    except UnicodeEncodeError:  # of a file name that is no UTF-8
        return msgspec.json.encode(_sayable(msgspec.to_builtins(_File(run))))


def _sayable(part: Any) -> Any:
    """The same with "?" in the place of what UTF-8 cannot say."""
    if isinstance(part, str):
        return part.encode(errors="replace").decode()
    if isinstance(part, dict):
        return {_sayable(key): _sayable(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_sayable(each) for each in part]
    return part


def read_run(where: str | os.PathLike[str], rank: int = 0) -> Run:
    """Read a run.

    Args:
        where: the run's folder, or the file in it.
        rank: whose run, of those in a folder.

    Raises:
        UsageError: it is missing, damaged, no run, or of a newer feedline.
    """
    path = Path(where)
    file = path / run_file(rank) if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"no run at {str(path)!r}: {file.name} cannot be read ({error.strerror}). A run is "
            "written by feedline.watch(..., run=FOLDER) and by feedline train"
        ) from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{str(file)!r} is larger than {MAX_BYTES >> 20} MiB, so it is no run")
    try:
        head = msgspec.json.decode(data, type=_Head)
    except _DAMAGED as error:
        raise UsageError(f"{str(file)!r} is no run, or is damaged: {error}") from error
    if head.what != _WHAT:
        raise UsageError(f"{str(file)!r} is no run of feedline's: it does not say that it is one")
    if head.version > RUN_VERSION:
        raise UsageError(
            f"{str(file)!r} is of version {head.version}, and this feedline knows versions up to "
            f"{RUN_VERSION}; it was written by a newer feedline: update this one"
        )
    try:
        run = msgspec.json.decode(data, type=_File).run
    except _DAMAGED as error:
        raise UsageError(f"{str(file)!r} is damaged: {error}") from error
    if (problem := _problem(run)) is not None:
        raise UsageError(f"{str(file)!r} is damaged: {problem}")
    return run


def _problem(run: Run) -> str | None:
    """What of a run no recorder could have written; None where all is possible.

    With such figures what is worked out from a run would overflow, or never end.
    """
    if max(run.machine.cores, run.machine.usable_cores) > _MOST_CORES:
        return f"no machine has more than {_MOST_CORES} cores"
    for each in run.passes:
        for times in (each.start_ms, each.wait, each.copy, each.compute):
            if times is not None and not times.sound:
                return "times that are negative, or in no bin"
    if any(not 0 <= k < OCTAVES for k in run.sample_sizes):
        return f"samples of a size that is none of 0 to {OCTAVES - 1}"
    pending: list[Any] = [msgspec.to_builtins(run)]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += [*part.keys(), *part.values()]
        elif isinstance(part, (list, tuple)):
            pending += part
        elif isinstance(part, (int, float)) and not -_MOST <= part <= _MOST:
            return f"it holds a number beyond {_MOST:g}"
    return None
