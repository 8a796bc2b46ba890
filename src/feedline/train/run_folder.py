"""The folder of a run: its name, its lock, its checkpoints and its files of figures.

runs/resnet18-1/last.pt            checkpoint to resume from; previous.pt is the one before
runs/resnet18-1/best.pt            weights with the best validation accuracy, and their classes
runs/resnet18-1/recipe.toml        settings, for `--config`
runs/resnet18-1/environment.json   machine and versions of the latest start
runs/resnet18-1/metrics.csv        one line for each finished epoch; metrics.jsonl as objects
runs/resnet18-1/trace.json         where the time went, in all starts: `feedline report RUN`

Guarantees: a file under its final name is complete and on the disk, and replaces the earlier one in
one step, so a crash at any moment leaves the earlier or the later one. Each entry of a checkpoint
has a checksum, so a changed bit is damage. Reading uses torch's weights-only unpickler: a foreign
checkpoint cannot execute code. A full disk does not end a
training: it is reported, and the checkpoint before stays; so does a file of figures.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from feedline.errors import SaveError, StateError, UsageError
from feedline.system import lock_file, refuse_unusable_path, replacing, unwritten, write_through
from feedline.text import shell_command
from feedline.tuning.training_step import is_out_of_memory

RECIPE_NAME = "recipe.toml"
CHECKPOINT_NAME = "last.pt"
PREVIOUS_NAME = "previous.pt"
"""The checkpoint before the last, in case that is damaged."""
BEST_NAME = "best.pt"
"""The weights with the best validation accuracy."""
WEIGHTS = "feedline model weights"
"""Kind of a file of weights, from which no training can resume."""

_CHECKPOINT = "feedline training checkpoint"
_VERSION = 4
_NAMES = {_CHECKPOINT: CHECKPOINT_NAME, WEIGHTS: BEST_NAME}
_RUNS = Path("runs")
_ROOM = 40  # characters of the longest name, .environment.json.PID.partial
_LOCK = ".lock"  # on Windows, which opens no folders
_EPOCHS = "epoch-*.pt"
_CHECKPOINTS = (CHECKPOINT_NAME, PREVIOUS_NAME, _EPOCHS)


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
    refuse_unusable_path(out, room=_ROOM)
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


class DamagedCheckpoint(StateError):
    """A file that is no whole checkpoint, by its checksums; an earlier one may be intact."""


def save_checkpoint(
    path: Path, content: dict[str, Any], *, kind: str = _CHECKPOINT, previous: Path | None = None
) -> None:
    """Write a checkpoint or weights, replacing an earlier file or giving it the name `previous`.

    If that fails, mostly for a full disk, the earlier file is unchanged (SaveError).
    """
    try:
        with replacing(path) as partial:
            with open(partial, "wb") as file, _checksums():
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


@contextmanager
def _checksums() -> Iterator[None]:
    """Context manager: torch.save writes checksums, also if the program has turned them off."""
    settings = torch.serialization
    if not hasattr(settings, "set_crc32_options"):  # an older torch always writes them
        yield
        return
    before = settings.get_crc32_options()
    settings.set_crc32_options(True)
    try:
        yield
    finally:
        settings.set_crc32_options(before)


def load_checkpoint(path: Path, *, kind: str = _CHECKPOINT) -> dict[str, Any]:
    """Read a checkpoint or weights, from a file or the folder of a run, to the CPU (StateError)."""
    name = _NAMES[kind]
    if path.is_dir():
        path = path / name
    if not path.is_file():
        raise StateError(f"{path}: no such file", hint=f"name the folder of a run or its {name}")
    try:
        with zipfile.ZipFile(path) as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign files; the error says more
            has_checksums = any(entry.CRC for entry in archive.infolist())  # torch can omit them
            if has_checksums and archive.testzip() is not None:  # torch does not compare them
                raise zipfile.BadZipFile("an entry has another checksum")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # foreign content can raise any
        if isinstance(error, MemoryError) or is_out_of_memory(error):
            raise
        text = f"{path}: damaged, or not a checkpoint of feedline"
        raise DamagedCheckpoint(text) from error
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


def epoch_checkpoints(out: Path) -> list[Path]:
    """Checkpoints of finished epochs (`keep_checkpoints`) in the folder of a run, oldest first."""
    return sorted(out.glob(_EPOCHS), key=lambda path: (len(path.name), path.name))


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
            for old in epoch_checkpoints(self.out)[: -self.keep]:
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
