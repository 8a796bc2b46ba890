"""A demo set on disk: `train/<class>/*.jpg` and `val/<class>/*.jpg`.

Guarantees: the folder holds a whole set or was never touched: pictures are written to a hidden
sibling and moved into place in one step. Files that feedline did not write are never removed.
Relies on: a marker file, written last, that says which set the folder holds.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from feedline.errors import DatasetError, UsageError
from feedline.train.demo_images import CLASS_NAMES, demo_jpeg

__all__ = ["MARKER", "DemoSet", "write_demo_set"]

MARKER = ".feedline-demo.json"
_VERSION = 1  # of the pictures; raise it when they change, so that an old set is made anew


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSet:
    """Which demo set: it decides every byte.

    Args:
        classes: 2 to 12 classes.
        train_per_class: pictures of each class in `train/`.
        val_per_class: pictures of each class in `val/`.
        seed: another seed, other pictures; at least 0.

    Raises:
        UsageError: a value is out of range.
    """

    classes: int = 6
    train_per_class: int = 64
    val_per_class: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("classes", 2, len(CLASS_NAMES)),
            ("train_per_class", 1, 100_000),
            ("val_per_class", 1, 100_000),
            ("seed", 0, 2**63 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} must be from {low} to {high}, got {value}")

    @property
    def total(self) -> int:
        """Pictures in the set."""
        return self.classes * (self.train_per_class + self.val_per_class)

    def pictures(self) -> Iterator[tuple[str, str, str, int]]:
        """The path within the folder, split, class name and number of every picture."""
        for split, count in (("train", self.train_per_class), ("val", self.val_per_class)):
            for class_name in CLASS_NAMES[: self.classes]:
                for number in range(count):
                    path = f"{split}/{class_name}/{class_name}-{number:05d}.jpg"
                    yield path, split, class_name, number


def _found(folder: Path) -> tuple[DemoSet | None, bool]:
    """The set that a folder's marker claims, or None, and whether all of its pictures are there."""
    demo = None
    try:
        marker = json.loads((folder / MARKER).read_text())
        demo = DemoSet(**marker["set"])
        size = sum((folder / name).stat().st_size for name, *_ in demo.pictures())
        return demo, (_VERSION, size) == (marker["version"], marker["bytes"])
    except (OSError, ValueError, TypeError, KeyError):
        return demo, False


def _stranger(folder: Path, demo: DemoSet | None) -> str | None:
    """Something in a folder that is not of the set it claims to hold."""
    if demo is None:
        return next((path.name for path in folder.iterdir()), None)
    own = {MARKER, *(name for name, *_ in demo.pictures())}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if (path.is_symlink() or not path.is_dir()) and name not in own:
            return name
    return None


def _remove_leftovers(folder: Path) -> None:
    """Remove half-written sets of runs that were killed outright."""
    for partial in folder.parent.glob(f".{folder.name}.partial-*"):
        pid = partial.name.rpartition("-")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(partial, ignore_errors=True)


def write_demo_set(
    folder: Path, demo: DemoSet, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> bool:
    """Write a demo set, or leave it alone where the same one is there already.

    Args:
        folder: where to; made if missing. May hold nothing, or an earlier demo set, which is
            then replaced.
        demo: which set.
        progress: called with (pictures done, pictures in all) after each picture.

    Returns:
        Whether it was written; False means it was there.

    Raises:
        DatasetError: the folder holds something else.
    """
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise DatasetError(f"{folder} is a file; name a folder for the demo set")
    earlier, whole = _found(folder)
    stranger = _stranger(folder, earlier) if folder.is_dir() else None
    if stranger is not None:
        raise DatasetError(
            f"{folder} is not empty and holds what feedline did not write, e.g. {stranger}; name "
            "a new folder or an empty one"
        )
    if earlier == demo and whole:
        return False

    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    partial = folder.with_name(f".{folder.name}.partial-{os.getpid()}")
    try:
        size = 0
        for done, (name, split, class_name, number) in enumerate(demo.pictures(), start=1):
            path = partial / name
            if number == 0:
                path.parent.mkdir(parents=True)
            data = demo_jpeg(class_name, number=number, split=split, seed=demo.seed)
            path.write_bytes(data)
            size += len(data)
            progress(done, demo.total)
        marker = {"version": _VERSION, "set": asdict(demo), "bytes": size}
        (partial / MARKER).write_text(json.dumps(marker) + "\n")
        if earlier is not None:
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return True
