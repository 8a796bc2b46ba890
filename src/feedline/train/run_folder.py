"""The folder of a run: its name, its lock, its checkpoints and its files of figures.

runs/resnet18-1/last.pt            checkpoint to resume from; previous.pt is the one before
runs/resnet18-1/best.pt            weights with the best validation accuracy, and their classes
runs/resnet18-1/recipe.toml        settings, for `--config`
runs/resnet18-1/environment.json   machine and versions of the latest start
runs/resnet18-1/metrics.csv        one line for each finished epoch; metrics.jsonl as objects
runs/resnet18-1/trace.json         where the time went, in all starts: `feedline report RUN`

Guarantees: each file is whole, or as it was before. A file of figures that cannot be written does
not end a training.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from feedline.errors import StateError, UsageError
from feedline.system import lock_file, refuse_device_name, replacing
from feedline.text import shell_command
from feedline.train.checkpoint import BEST_NAME, CHECKPOINT_NAME, EPOCHS, PREVIOUS_NAME

__all__ = [
    "RECIPE_NAME",
    "check_run_folder",
    "find_checkpoint",
    "lock_run_folder",
    "make_run_folder",
    "write_text",
]

RECIPE_NAME = "recipe.toml"
_RUNS = Path("runs")
_LOCK = ".lock"  # on Windows, which opens no folders
_CHECKPOINTS = (CHECKPOINT_NAME, PREVIOUS_NAME, EPOCHS)


def _numbered(model: str) -> list[tuple[int, Path]]:
    """Numbers and folders of the runs of a model with default names, oldest first."""
    stem = _stem(model)
    found = [(path.name.removeprefix(stem), path) for path in _RUNS.glob(f"{stem}*")]
    return sorted((int(number), path) for number, path in found if number.isdecimal())


def _stem(model: str) -> str:
    return model.replace("/", "-") + "-"


def find_checkpoint(
    resume: str | None, *, out: Path | None, model: str | None = None
) -> Path | None:
    """The last checkpoint of the run to resume, or None for a new run.

    `resume` is a checkpoint, the folder of a run, or "auto": the run in `out`, or the newest run of
    the model, or of all, if there is any. The file may be missing if the run has other checkpoints.
    """
    if resume is None:
        return None
    if resume != "auto":
        path = Path(resume)
        path = path / CHECKPOINT_NAME if path.is_dir() else path
        others = path.name == CHECKPOINT_NAME and _newest(path.parent, *_CHECKPOINTS, BEST_NAME)
        if path.is_file() or others:
            return path
        raise StateError(
            f"--resume {resume}: no checkpoint found",
            hint=f"name the folder of a run or its {CHECKPOINT_NAME}, or use --resume auto",
        )
    folders = [out] if out else [path for _, path in _numbered(model or "")]
    if not out and not model:
        folders = sorted(_RUNS.glob("*"), key=lambda folder: _newest(folder, *_CHECKPOINTS))
    found = (folder for folder in reversed(folders) if _newest(folder, *_CHECKPOINTS))
    return next((folder / CHECKPOINT_NAME for folder in found), None)


def _newest(folder: Path, *patterns: str) -> float:
    """Time of the newest file of a folder that matches; 0 without files."""
    paths = (path for pattern in patterns for path in folder.glob(pattern))
    return max((path.stat().st_mtime for path in paths), default=0.0)


def check_run_folder(out: Path | None, *, checkpoint: Path | None) -> None:
    """Check that a run can be written to a folder, or to the default one, without making it."""
    if out is None:
        out = _RUNS if checkpoint is None else checkpoint.parent
    refuse_device_name(out)
    parent = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        why = "permission denied" if parent.is_dir() else "it is a file"
        raise UsageError(f"cannot write a run to {out}: {parent}: {why}", hint="choose --out")
    last = out / CHECKPOINT_NAME
    if last.exists() and (checkpoint is None or checkpoint.resolve() != last.resolve()):
        raise UsageError(
            f"{out} has the checkpoint of an earlier run",
            hint=f"resume it with `feedline train --resume {shell_command(str(out))}`, or choose "
            "another --out",
        )


def make_run_folder(out: Path | None, *, checkpoint: Path | None, model: str) -> Path:
    """Make the folder of a run: `out`, that of the checkpoint, or the next free `runs/MODEL-N`."""
    if out is None and checkpoint is not None:
        out = checkpoint.parent
    try:
        if out is not None:
            check_run_folder(out, checkpoint=checkpoint)
            out.mkdir(parents=True, exist_ok=True)
            return out
        number = max((number for number, _ in _numbered(model)), default=0)
        while True:
            number += 1
            with suppress(FileExistsError):  # another run was faster
                out = _RUNS / f"{_stem(model)}{number}"
                out.mkdir(parents=True)
                return out
    except OSError as error:
        raise UsageError(
            f"cannot write a run to {out}: {error.strerror}", hint="choose another --out"
        ) from None


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder (UsageError); remove it at the end if it is empty."""
    with ExitStack() as stack:
        if sys.platform == "win32":
            # Windows removes the file when it is closed, also at the end of the process.
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_TEMPORARY)
        else:
            descriptor = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        if not lock_file(descriptor):
            raise UsageError(
                f"another run is writing to {folder}", hint="wait for it, or choose --out"
            )
        try:
            yield
        finally:
            if sys.platform == "win32":
                stack.close()
            with suppress(OSError):  # not empty
                folder.rmdir()


def write_text(path: Path, text: str, note: Callable[[str], object]) -> None:
    """Write a file, replacing an earlier one; call `note` if that fails."""
    try:
        with replacing(path) as partial:
            partial.write_bytes(text.encode())  # the same line ends on all systems
    except OSError as error:
        note(f"{path} cannot be written: {error.strerror}. Training continues")
