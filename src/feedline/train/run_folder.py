"""The folder of a run: its name, its checkpoint, and the weights it keeps.

runs/resnet18-1/last.pt   everything needed to go on
runs/resnet18-1/best.pt   the weights with the best validation accuracy, and their classes
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from feedline.errors import StateError, UsageError
from feedline.system import lock_file
from feedline.train.checkpoint import BEFORE_NAME, CHECKPOINT_NAME, EPOCHS

__all__ = ["BEST_NAME", "check_run_folder", "find_checkpoint", "make_run_folder", "occupied"]

BEST_NAME = "best.pt"
_RUNS = Path("runs")
_LOCK = ".lock"  # on Windows, which opens no folders
_CHECKPOINTS = (CHECKPOINT_NAME, BEFORE_NAME, EPOCHS)


def _stem(model: str) -> str:
    return model.replace("/", "-") + "-"


def _numbered(model: str) -> list[tuple[int, Path]]:
    """The numbers and folders that runs of a model got by default, oldest first."""
    found = [
        (path.name.removeprefix(_stem(model)), path) for path in _RUNS.glob(f"{_stem(model)}*")
    ]
    return sorted((int(number), path) for number, path in found if number.isdecimal())


def find_checkpoint(
    resume: str | None, *, out: Path | None, model: str | None = None
) -> Path | None:
    """The last checkpoint of the run to go on from, or None to start anew.

    It may be gone where the run has others, which `way_out.whole_ones` names.

    Args:
        resume: None; a checkpoint or a run's folder; or "auto": the one in `out`, or where no
            `out` is given that of the newest run, and none where there is none.
        out: the run's folder, if the user named it.
        model: whose runs are looked for; None for any's.

    Raises:
        StateError: there is no such checkpoint.
    """
    if resume is None:
        return None
    if resume != "auto":
        path = Path(resume)
        path = path / CHECKPOINT_NAME if path.is_dir() else path
        beside = path.name == CHECKPOINT_NAME and _has(path.parent, *_CHECKPOINTS, BEST_NAME)
        if not path.is_file() and not beside:
            raise StateError(
                f"--resume {resume}: no checkpoint there; name a run's folder or its "
                f"{CHECKPOINT_NAME}, or use --resume auto"
            )
        return path
    if out is not None:
        folders = [out]
    elif model is not None:
        folders = [path for _, path in reversed(_numbered(model))]
    else:
        made = [path for path in _RUNS.glob("*") if _has(path, *_CHECKPOINTS)]
        folders = sorted(made, key=_written, reverse=True)
    for folder in folders:
        if _has(folder, *_CHECKPOINTS):
            return folder / CHECKPOINT_NAME
    return None


def _has(folder: Path, *names: str) -> bool:
    """Whether a folder has a file of one of these names."""
    return any(path.is_file() for name in names for path in folder.glob(name))


def _written(folder: Path) -> float:
    """When the latest checkpoint of a run was written."""
    return max(path.stat().st_mtime for name in _CHECKPOINTS for path in folder.glob(name))


def check_run_folder(out: Path | None, *, checkpoint: Path | None) -> None:
    """See whether a run can be written to where it is asked for; makes nothing.

    Args:
        out: as the user named it, or None.
        checkpoint: what the run goes on from, or None.

    Raises:
        UsageError: it cannot be written to, or holds another run's checkpoint.
    """
    if out is None:
        out = _RUNS if checkpoint is None else checkpoint.parent
    there = out
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise UsageError(f"cannot write a run to {out}: {there} is a file; name another --out")
    if not os.access(there, os.W_OK):
        raise UsageError(f"cannot write a run to {out}: permission denied; name another --out")
    last = out / CHECKPOINT_NAME
    if last.exists() and (checkpoint is None or checkpoint.resolve() != last.resolve()):
        raise UsageError(
            f"{out} holds the checkpoint of an earlier run; go on from it with feedline train "
            f"--resume {shlex.quote(str(out))}, or name another --out"
        )


def make_run_folder(out: Path | None, *, checkpoint: Path | None, model: str) -> Path:
    """Make the folder that a run writes to.

    Args:
        out: as the user named it; None goes on in the checkpoint's folder, or takes the next
            free `runs/MODEL-N`.
        checkpoint: what the run goes on from, or None.
        model: the model's name.

    Raises:
        UsageError: it cannot be written to, or holds another run's checkpoint.
    """
    if out is None and checkpoint is not None:
        out = checkpoint.parent
    try:
        if out is None:
            newest = max((number for number, _ in _numbered(model)), default=0)
            for number in itertools.count(newest + 1):
                out = _RUNS / f"{_stem(model)}{number}"
                with suppress(FileExistsError):  # another run took it a moment ago
                    out.mkdir(parents=True)
                    return out
        assert out is not None
        check_run_folder(out, checkpoint=checkpoint)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write a run to {out}: {error.strerror}; name another --out"
        ) from None
    return out


@contextmanager
def occupied(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder, and remove it at the end if nothing was written to it.

    Raises:
        UsageError: another run is in it.
    """
    with ExitStack() as stack:
        if sys.platform == "win32":
            # Windows removes the file when it is closed, also by the end of its process.
            held = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_TEMPORARY)
        else:
            held = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, held)
        if not lock_file(held):
            raise UsageError(
                f"another run is writing to {folder}; wait for it, or name another --out"
            )
        try:
            yield
        finally:
            if sys.platform == "win32":
                stack.close()
            with suppress(OSError):  # it holds something
                folder.rmdir()
