"""Where a dataset's training and validation images lie.

Two layouts: a folder with `train/` and, beside it, `val/`, `valid/`, `validation/` or `test/`; or
a folder of class folders, which has no validation images unless they are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from feedline.errors import DatasetError
from feedline.remote.open_location import was_url
from feedline.stores.index import table_hint
from feedline.stores.splits import TRAIN_NAME, VAL_NAMES, splits_below

__all__ = ["VAL_NAMES", "Splits", "check_classes", "find_splits", "label_map", "val_folder"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Splits:
    """The folders of class folders to train on and to validate on.

    Args:
        train: training images.
        val: validation images, or None.
        note: what the user should know about the choice, or "".
    """

    train: Path
    val: Path | None
    note: str = ""


def _holds_folders(folder: Path) -> bool:
    return folder.is_dir() and any(child.is_dir() for child in folder.iterdir())


def _instead(folder: Path) -> str:
    """What a folder without class folders holds, for a message."""
    name = min((child.name for child in folder.iterdir()), default="")
    return f"only files such as {name!r}" if name else "it is empty"


def find_splits(root: Path, *, val: Path | None = None) -> Splits:
    """Find the splits of a dataset.

    Args:
        root: a folder in one of the two layouts.
        val: a folder of class folders to validate on; overrides what lies under `root`.

    Raises:
        DatasetError: a folder is missing or holds no class folders.
    """
    for folder in (root, val):
        if folder is not None and not folder.is_dir():
            if was_url(folder):
                raise DatasetError(
                    f"{folder} was a URL, and this command reads folders of this machine: copy the "
                    "images or the cache to a disk here. In Python, feedline.ImageFolder reads a "
                    "cache at a URL"
                )
            found = "a file, no folder" if folder.exists() else "no such folder"
            raise DatasetError(
                f"{folder}: {found}. Name a folder of class folders, or one with train/ and val/; "
                f"`feedline demo-data demo-data` makes one to try{table_hint(str(folder))}"
            )
    if val is not None and not _holds_folders(val):
        raise DatasetError(
            f"{val}: found no class folders to validate on, {_instead(val)}; expected one folder a "
            "class"
        )

    beside = [root / name for name in VAL_NAMES if _holds_folders(root / name)]
    if TRAIN_NAME in splits_below(root) and _holds_folders(root / TRAIN_NAME):
        named = ", ".join(f"{name}/" for name in VAL_NAMES)
        if val is None and not beside:
            note = f"no validation: found none of {named} beside {root / 'train'}; --val names one"
            return Splits(train=root / "train", val=None, note=note)
        chosen = val or beside[0]
        extra = [path.name + "/" for path in beside if path != chosen] if val is None else []
        note = f"validating on {chosen}, not on {', '.join(extra)}" if extra else ""
        return Splits(train=root / "train", val=chosen, note=note)
    if beside:
        raise DatasetError(
            f"{root}: found {beside[0].name}/ but no train/ with class folders; name a folder with "
            "both, or the folder of class folders itself"
        )
    if not _holds_folders(root):
        raise DatasetError(
            f"{root}: found no class folders, {_instead(root)}; expected one folder a class, or "
            "train/ and val/ with one folder a class in each"
        )
    note = "" if val else f"no validation: {root} is a folder of class folders; --val names one"
    return Splits(train=root, val=val, note=note)


def val_folder(root: Path) -> Path:
    """The folder of class folders to judge on: that of validation, or `root` itself.

    Raises:
        DatasetError: there are no class folders.
    """
    splits = find_splits(root)
    return splits.val or splits.train


def check_classes(folder: Path, classes: Sequence[str]) -> None:
    """Make sure that there is something to tell apart.

    Raises:
        DatasetError: there are fewer than two classes.
    """
    if len(classes) < 2:
        raise DatasetError(
            f"{folder}: one class only ({', '.join(classes)}): nothing to learn. Training needs "
            "two class folders or more; is this perhaps one class's folder, not their parent?"
        )


def label_map(train: Sequence[str], val: Sequence[str]) -> list[int] | None:
    """How a validation set's labels read in the training set's classes.

    Returns:
        The training label of each validation label, or None where they are the same.

    Raises:
        DatasetError: the validation set has a class that is not trained.
    """
    numbers = {name: label for label, name in enumerate(train)}
    unknown = [name for name in val if name not in numbers]
    if unknown:
        raise DatasetError(
            f"the validation images have {len(unknown)} class{'es' * (len(unknown) > 1)} that the "
            f"training images do not have, e.g. {unknown[0]!r}; training has "
            f"{', '.join(list(train)[:8])}"
            f"{', ...' if len(train) > 8 else ''}. Class folders must be called the same in both"
        )
    mapped = [numbers[name] for name in val]
    return None if mapped == list(range(len(train))) else mapped
