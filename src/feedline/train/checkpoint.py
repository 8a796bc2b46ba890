"""Checkpoints and weights of a run: written whole or not at all, read without executing anything.

Guarantees: a file under its final name is complete and on the disk, and replaces the earlier one in
one step, so a crash at any moment leaves the earlier or the later one. Reading uses torch's
weights-only unpickler: a foreign checkpoint cannot execute code. A full disk does not end a
training: it is reported, and the checkpoint before stays.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from feedline.errors import SaveError, StateError, UsageError
from feedline.system import replacing, unwritten, write_through
from feedline.tuning.training_step import is_out_of_memory

__all__ = [
    "BEST_NAME",
    "CHECKPOINT_NAME",
    "EPOCHS",
    "PREVIOUS_NAME",
    "WEIGHTS",
    "CheckpointWriter",
    "DamagedCheckpoint",
    "damage_in",
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
_VERSION = 4
_NAMES = {_CHECKPOINT: CHECKPOINT_NAME, WEIGHTS: BEST_NAME}


class DamagedCheckpoint(StateError):
    """A checkpoint that is incomplete or has impossible values; an earlier one may be intact."""


@contextmanager
def damage_in(description: str, *, with_reason: bool = True) -> Iterator[None]:
    """Turn all errors but missing memory into DamagedCheckpoint: foreign content can raise any."""
    try:
        yield
    except Exception as error:
        if isinstance(error, MemoryError) or is_out_of_memory(error):
            raise
        text = error.message if isinstance(error, UsageError) else f"{error}"
        reason = " ".join(text.split()) or type(error).__name__
        raise DamagedCheckpoint(
            f"{description}: {reason[:200]}" if with_reason else description
        ) from error


def save_checkpoint(
    path: Path, content: dict[str, Any], *, kind: str = _CHECKPOINT, previous: Path | None = None
) -> None:
    """Write a checkpoint or weights, replacing an earlier file or giving it the name `previous`.

    If that fails, mostly for a full disk, the earlier file is unchanged (SaveError).
    """
    try:
        with replacing(path) as partial:
            with open(partial, "wb") as file:
                torch.save({"kind": kind, "version": _VERSION, **content}, file)
                file.flush()
                os.fsync(file.fileno())
            if previous is not None and path.exists():
                _link(path, previous)
    except (OSError, RuntimeError) as error:  # torch's writer has its own
        why = unwritten(path, _tensor_bytes(content), error)
        raise SaveError(f"{path} cannot be written: {why}") from error
    # The name has to reach the disk too, or a power cut brings the old file back.
    write_through(path.parent)


def load_checkpoint(path: Path, *, kind: str = _CHECKPOINT) -> dict[str, Any]:
    """Read a checkpoint or weights, from a file or the folder of a run, to the CPU (StateError)."""
    name = _NAMES[kind]
    if path.is_dir():
        path = path / name
    if not path.is_file():
        raise StateError(f"{path}: no such file", hint=f"name the folder of a run or its {name}")
    text = f"{path}: damaged, or not a checkpoint of feedline"
    with damage_in(text, with_reason=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about foreign files; the error says more
        content = torch.load(path, map_location="cpu", weights_only=True)
    found = content if isinstance(content, dict) else {}
    if (found.get("kind"), found.get("version")) != (kind, _VERSION):
        got = f"{found.get('kind', 'another file')}, version {found.get('version')}"
        known = str(found.get("kind")) in _NAMES and isinstance(found.get("version"), int)
        raise (StateError if known else DamagedCheckpoint)(
            f"{path}: expected {kind}, version {_VERSION}, got {got}",
            hint=f"name {name} in the same folder" if known and found["kind"] != kind else "",
        )
    return found


def _tensor_bytes(content: Any) -> int:
    """Bytes of all tensors in nested dicts and lists."""
    if isinstance(content, torch.Tensor):
        return content.nbytes
    inner = content.values() if isinstance(content, dict) else content
    return sum(map(_tensor_bytes, inner)) if isinstance(content, dict | list | tuple) else 0


def _link(path: Path, name: Path) -> None:
    """Give a file another name in one step; a copy if the file system has no links."""
    with replacing(name) as partial:
        try:
            os.link(path, partial)
        except OSError:
            shutil.copy2(path, partial)


@dataclass(kw_only=True, slots=True)
class CheckpointWriter:
    """Writes checkpoints and the best weights to the folder of a run."""

    out: Path
    keep: int  # checkpoints of finished epochs, besides the last one
    note: Callable[[str], object]  # called with errors that do not end the training
    errors: dict[str, str] = field(default_factory=dict, init=False)
    """Why the latest file of a name could not be written."""

    def save(self, content: dict[str, Any], *, epochs: int | None, must: bool = False) -> None:
        """Write a checkpoint, which stands after a number of epochs or within one (None).

        If it cannot be written, report that, or raise SaveError if it must be.
        """
        last = self.out / CHECKPOINT_NAME
        if not self._write(last, content, must=must, previous=self.out / PREVIOUS_NAME):
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

    def save_best(self, content: dict[str, Any]) -> None:
        """Write the best weights so far."""
        self._write(self.out / BEST_NAME, content, kind=WEIGHTS)

    def _write(
        self, path: Path, content: dict[str, Any], *, must: bool = False, **how: Any
    ) -> bool:
        try:
            save_checkpoint(path, content, **how)
        except SaveError as error:
            self.errors[path.name] = str(error)
            if must:
                raise
            kept = "the file before stays" if path.exists() else "no file was written yet"
            self.note(f"{error}. Training continues; {kept}")
            return False
        self.errors.pop(path.name, None)
        return True

    @property
    def best(self) -> Path | None:
        """File of the best weights; None if it is missing or older."""
        best = self.out / BEST_NAME
        return best if BEST_NAME not in self.errors and best.is_file() else None
