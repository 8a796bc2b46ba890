"""Which folder a command reads if it is given one with train/ and val/ below."""

from __future__ import annotations

import os
from collections.abc import Sequence

from feedline.cli.output import complain

__all__ = ["note_train_folder", "train_folder"]


def train_folder(named: str, splits: Sequence[str]) -> str:
    """Return the folder of the training images, and print a line if it is not the one named.

    Args:
        named: a path or a URL.
        splits: the names of the split folders in it, "train" first; empty if there are none.
    """
    used = f"{named.rstrip('/')}/{splits[0]}" if splits else named
    note_train_folder(named, used)
    return used


def note_train_folder(named: str | os.PathLike[str], used: str | os.PathLike[str]) -> None:
    """Print a line if a command reads a folder below the one that was named."""
    if os.fspath(named) != os.fspath(used):
        complain(f"using {used}, the training images of {named}", label="note: ")
