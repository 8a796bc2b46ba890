"""Checkpoints and weights of a run: written whole or not at all, read without executing anything.

Guarantees: a file under its final name is complete and on the disk, and replaces the earlier one in
one step, so a crash at any moment leaves the earlier or the later one. Reading uses torch's
weights-only unpickler: a foreign checkpoint cannot execute code. A full disk does not end a
training: it is reported, and the checkpoint before stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from feedline.errors import SaveError, StateError
from feedline.system import unwritten, write_through

__all__ = [
    "BEST_NAME",
    "CHECKPOINT_NAME",
    "EPOCHS",
    "PREVIOUS_NAME",
    "WEIGHTS",
    "CheckpointWriter",
    "load_checkpoint",
    "save_checkpoint",
]

CHECKPOINT_NAME = "last.pt"
PREVIOUS_NAME = "previous.pt"
"""The checkpoint before the last, in case that is damaged."""
EPOCHS = "epoch-*.pt"
"""Pattern of checkpoints of finished epochs (`keep_checkpoints`)."""
BEST_NAME = "best.pt"
"""The weights with the best validation accuracy."""
WEIGHTS = "feedline model weights"
"""Kind of a file of weights, from which no training can resume."""

_CHECKPOINT = "feedline training checkpoint"
_VERSION = 2


def save_checkpoint(
    path: Path, content: dict[str, Any], *, kind: str = _CHECKPOINT, previous: Path | None = None
) -> None:
    """Write a checkpoint or weights, replacing an earlier file of that name.

    Args:
        path: final name; its folder exists.
        content: tensors, numbers, text, and lists and dicts of them.
        kind: kind of the file, for `load_checkpoint`.
        previous: new name of the earlier file; None removes it.

    Raises:
        SaveError: it cannot be written, mostly for a full disk; the earlier file is unchanged.
    """
    partial = _partial(path)
    try:
        with open(partial, "wb") as file:
            torch.save({"kind": kind, "version": _VERSION, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            _link(path, previous)
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch's writer has its own
        _remove(partial)  # first: its bytes would not count as free
        needed = sum(each.nbytes for each in _tensors(content))
        raise SaveError(f"{path} cannot be written: {unwritten(path, needed, error)}") from error
    finally:
        _remove(partial)
    # The name has to reach the disk too, or a power cut brings the old file back.
    write_through(path.parent)


def load_checkpoint(path: Path, *, kind: str = _CHECKPOINT) -> dict[str, Any]:
    """Read a checkpoint or weights, with tensors on the CPU.

    Args:
        path: a file, or the folder of a run for its last checkpoint or best weights.
        kind: expected kind.

    Raises:
        StateError: the file is missing, damaged, or something else.
    """
    name = CHECKPOINT_NAME if kind == _CHECKPOINT else BEST_NAME
    if path.is_dir():
        path = path / name
    if not path.is_file():
        what = "checkpoint" if kind == _CHECKPOINT else "weights"
        raise StateError(f"{path}: no such {what}", hint=f"name the folder of a run or its {name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign files; the error says more
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # For random bytes the unpickler raises any error; only the reader's own text is useful.
        useful = isinstance(error, RuntimeError | OSError)
        first = str(error).strip().partition("\n")[0].partition(". ")[0] if useful else ""
        raise StateError(
            f"{path}: damaged, or not a checkpoint of feedline" + (f" ({first})" if first else "")
        ) from error
    if not isinstance(content, dict):
        content = {}
    found, version = content.get("kind"), content.get("version")
    if found != kind or version != _VERSION:
        other = {WEIGHTS: CHECKPOINT_NAME, _CHECKPOINT: BEST_NAME}.get(str(found), "")
        got = f"{found or 'another file'}" + ("" if version is None else f", version {version}")
        raise StateError(
            f"{path}: expected {kind}, version {_VERSION}, got {got}",
            hint=f"name {other} in the same folder" if other and found != kind else "",
        )
    return content


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _remove(partial: Path) -> None:
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def _link(path: Path, name: Path) -> None:
    """Give a file another name in one step; a copy if the file system has no links."""
    partial = _partial(name)
    partial.unlink(missing_ok=True)
    try:
        try:
            os.link(path, partial)
        except OSError:
            shutil.copy2(path, partial)
        os.replace(partial, name)
    finally:
        _remove(partial)


def _tensors(content: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from _tensors(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _tensors(value)


@dataclass(kw_only=True, slots=True)
class CheckpointWriter:
    """Writes checkpoints and the best weights to the folder of a run.

    Args:
        out: the folder.
        keep: number of checkpoints of finished epochs to keep besides the last one.
        note: called with errors that do not end the training.
    """

    out: Path
    keep: int
    note: Callable[[str], object]
    weights_error: str | None = field(default=None, init=False)
    """Why the best weights could not be written, or None."""
    checkpoint_error: str | None = field(default=None, init=False)
    """Why the latest checkpoint could not be written, or None."""

    def save(self, content: dict[str, Any], *, epochs: int | None, must: bool = False) -> None:
        """Write a checkpoint.

        Args:
            content: the checkpoint.
            epochs: number of finished epochs, if it stands between two.
            must: raise if it cannot be written.

        Raises:
            SaveError: it cannot be written, and must be.
        """
        last = self.out / CHECKPOINT_NAME
        try:
            save_checkpoint(last, content, previous=self.out / PREVIOUS_NAME)
            self.checkpoint_error = None
        except SaveError as error:
            self.checkpoint_error = str(error)
            if must:
                raise
            kept = "the previous checkpoint stays" if self.has_checkpoint else "no checkpoint yet"
            self.note(f"{error}. Training continues; {kept}")
            return
        if self.keep and epochs is not None:
            named = last.with_name(f"epoch-{epochs:04}.pt")
            try:
                _link(last, named)
            except OSError as error:
                self.note(f"{named} cannot be written: {error.strerror}. Training continues")
                return
            for old in sorted(self.out.glob(EPOCHS))[: -self.keep]:
                old.unlink(missing_ok=True)

    @property
    def has_checkpoint(self) -> bool:
        """True if there is a checkpoint to resume from."""
        return (self.out / CHECKPOINT_NAME).exists()

    @property
    def best(self) -> Path | None:
        """File of the best weights; None if there is none, or an older one."""
        best = self.out / BEST_NAME
        return best if self.weights_error is None and best.is_file() else None

    def save_best(self, content: dict[str, Any]) -> None:
        """Write the best weights so far."""
        best = self.out / BEST_NAME
        try:
            save_checkpoint(best, content, kind=WEIGHTS)
            self.weights_error = None
        except SaveError as error:
            self.weights_error = str(error)
            kept = "the previous weights stay" if best.exists() else "no weights yet"
            self.note(f"{error}. Training continues; {kept}")
