"""A folder of as many images as wanted, from few: hard links in turn to a folder's files."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

__all__ = ["linked"]

_FILES_A_CLASS = 1300  # as in ImageNet


def linked(folder: Path, count: int, target: Path) -> Path:
    """Make `target` with `count` images, sub-folders of 1300 each; returns it.

    Fewer than the folder has are taken evenly from all of it.

    Where a file may not be linked (it has as many links as the file system allows, is another
    user's, or on another file system), it is copied, and the copy linked from then on.
    """
    sources = sorted(str(path) for path in folder.glob("*/*") if path.is_file())
    sources = sources[:: max(1, len(sources) // count)]
    for begin in range(0, count, _FILES_A_CLASS):
        sub_folder = target / f"n{begin // _FILES_A_CLASS:08d}"
        sub_folder.mkdir(parents=True)
        descriptor = os.open(sub_folder, os.O_RDONLY)
        try:
            for number in range(begin, min(begin + _FILES_A_CLASS, count)):
                source, name = sources[number % len(sources)], f"{number:08d}.jpg"
                try:
                    os.link(source, name, dst_dir_fd=descriptor)
                except OSError as error:
                    if error.errno not in (errno.EMLINK, errno.EPERM, errno.EXDEV):
                        raise
                    sources[number % len(sources)] = str(sub_folder / name)
                    shutil.copyfile(source, sub_folder / name)
        finally:
            os.close(descriptor)
    return target
