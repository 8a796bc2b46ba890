"""Checkpoints: written whole or not at all, read without running anything in them.

Guarantees: a file under its final name is complete, on the disk, and replaces the earlier one in a
single step, so a crash at any moment leaves the earlier or the later one. Reading goes through
torch's weights-only unpickler: a checkpoint from elsewhere cannot execute code.
"""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from feedline.errors import StateError

__all__ = ["CHECKPOINT_NAME", "WEIGHTS", "load_checkpoint", "save_checkpoint"]

CHECKPOINT_NAME = "last.pt"
WEIGHTS = "feedline model weights"
"""The kind of a file that a model can be used from, but no training can go on from."""

_CHECKPOINT = "feedline training checkpoint"
_VERSION = 1


def save_checkpoint(path: Path, content: dict[str, Any], *, kind: str = _CHECKPOINT) -> None:
    """Write a checkpoint, or a file of another kind, replacing an earlier one of that name.

    Args:
        path: its final name; its folder exists.
        content: tensors, numbers, strings, and lists and dicts of them.
        kind: what the file is; only a checkpoint is read back by `load_checkpoint`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            torch.save({"kind": kind, "version": _VERSION, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    # The new name itself must reach the disk too, or a power cut brings the old one back.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, its tensors on the CPU.

    Args:
        path: a checkpoint, or a run's folder, whose last one is meant.

    Raises:
        StateError: there is none, it is damaged, or it is something else.
    """
    if path.is_dir():
        path = path / CHECKPOINT_NAME
    if not path.is_file():
        raise StateError(
            f"{path}: no checkpoint there; name a run's folder or its {CHECKPOINT_NAME}"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a foreign file; the error says it better
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        # The unpickler's KeyError is a byte's number, which tells a user nothing.
        first = "" if isinstance(error, KeyError) else str(error).strip().partition("\n")[0]
        raise StateError(
            f"{path}: not a checkpoint that feedline can read, or a damaged one"
            + (f" ({first})" if first else "")
        ) from error
    if not isinstance(content, dict):
        content = {}
    kind, version = content.get("kind"), content.get("version")
    if kind != _CHECKPOINT or version != _VERSION:
        raise StateError(
            f"{path}: expected a {_CHECKPOINT} of version {_VERSION}, found "
            f"{kind or 'something else'}{'' if version is None else f' of version {version}'}"
            + (f"; name the {CHECKPOINT_NAME} beside it" if kind == WEIGHTS else "")
        )
    return content
