"""Checkpoints: written whole or not at all, read without running anything in them.

Guarantees: a file under its final name is complete, on the disk, and replaces the earlier one in a
single step, so a crash at any moment leaves the earlier or the later one. Reading goes through
torch's weights-only unpickler: a checkpoint from elsewhere cannot execute code.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from feedline.errors import SaveError, StateError
from feedline.system import unwritten, write_through

__all__ = [
    "BEFORE_NAME",
    "CHECKPOINT_NAME",
    "EPOCHS",
    "WEIGHTS",
    "keep_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]

CHECKPOINT_NAME = "last.pt"
BEFORE_NAME = "before.pt"
"""The one before the last, for when that is damaged."""
EPOCHS = "epoch-*.pt"
"""Those that are kept, each of an epoch's end; a pattern."""
WEIGHTS = "feedline model weights"
"""The kind of a file that a model can be used from, but no training can go on from."""

_CHECKPOINT = "feedline training checkpoint"
_VERSION = 1
_BEST = "best.pt"  # what weights are called in a run's folder


def save_checkpoint(
    path: Path, content: dict[str, Any], *, kind: str = _CHECKPOINT, before: Path | None = None
) -> None:
    """Write a checkpoint, or a file of another kind, replacing an earlier one of that name.

    Args:
        path: its final name; its folder exists.
        content: tensors, numbers, strings, and lists and dicts of them.
        kind: what the file is; only a checkpoint is read back by `load_checkpoint`.
        before: a name that the earlier one goes on under; None: it is gone.

    Raises:
        SaveError: it cannot be written, on a full disk above all; the earlier one is as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            torch.save({"kind": kind, "version": _VERSION, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        if before is not None and path.exists():
            _link(path, before)
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:  # torch's writer has an error of its own
        _remove(partial)  # or what it holds would not count as free
        raise SaveError(_unsaved(path, content, error)) from error
    finally:
        _remove(partial)
    # The new name itself must reach the disk too, or a power cut brings the old one back.
    write_through(path.parent)


def keep_checkpoint(path: Path, name: str, *, most: int) -> None:
    """Keep a checkpoint under another name beside it, and no more than so many such names.

    Args:
        path: the checkpoint.
        name: ends in its number, as "epoch-0003.pt".
        most: how many are kept: those with the highest numbers.

    Raises:
        SaveError: there is no room for the other name, or for a copy.
    """
    named = path.with_name(name)
    try:
        _link(path, named)
    except OSError as error:
        raise SaveError(f"{named} cannot be written: {error.strerror}") from error
    stem = name.rpartition("-")[0]
    kept = sorted(path.parent.glob(f"{stem}-*{path.suffix}"))
    for old in kept[:-most]:
        old.unlink(missing_ok=True)


def _remove(partial: Path) -> None:
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def _link(path: Path, name: Path) -> None:
    """Give a file another name, in one step; a copy where the file system has no links."""
    partial = name.with_name(f".{name.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    try:
        try:
            os.link(path, partial)
        except OSError:
            shutil.copy2(path, partial)
        os.replace(partial, name)
    finally:
        _remove(partial)


def _unsaved(path: Path, content: dict[str, Any], error: Exception) -> str:
    needed = sum(each.nbytes for each in _tensors(content))
    return f"{path} cannot be written: {unwritten(path, needed, error)}"


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


def load_checkpoint(path: Path, *, kind: str = _CHECKPOINT) -> dict[str, Any]:
    """Read a checkpoint, or a file of another kind, its tensors on the CPU.

    Args:
        path: a checkpoint, or a run's folder, whose last one is meant.
        kind: what the file is to be.

    Raises:
        StateError: there is none, it is damaged, or it is something else.
    """
    if path.is_dir():
        path = path / CHECKPOINT_NAME
    if not path.is_file():
        what, name = ("checkpoint", CHECKPOINT_NAME) if kind == _CHECKPOINT else ("weights", _BEST)
        raise StateError(f"{path}: no {what} there; name a run's folder or its {name}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a foreign file; the error says it better
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # In bytes at random the unpickler meets any error, of which only the reader's own tell a
        # user something; and torch's advice on what it will not unpickle is not for this case.
        told = isinstance(error, RuntimeError | OSError)
        first = str(error).strip().partition("\n")[0].partition(". ")[0] if told else ""
        raise StateError(
            f"{path}: not a checkpoint that feedline can read, or a damaged one"
            + (f" ({first})" if first else "")
        ) from error
    if not isinstance(content, dict):
        content = {}
    found, version = content.get("kind"), content.get("version")
    if found != kind or version != _VERSION:
        beside = {WEIGHTS: CHECKPOINT_NAME, _CHECKPOINT: _BEST}.get(str(found))
        raise StateError(
            f"{path}: expected a {kind} of version {_VERSION}, found "
            f"{found or 'something else'}{'' if version is None else f' of version {version}'}"
            + (f"; name the {beside} beside it" if beside and found != kind else "")
        )
    return content
