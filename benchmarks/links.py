"""Make a large image folder from a small one with hard links."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

__all__ = ["linked"]

_FILES_A_CLASS = 1300  # as in ImageNet


def linked(folder: Path, count: int, target: Path) -> Path:
    """Create `target` with `count` images in sub-folders of 1300; return it.

    If fewer images are needed than the folder has, they are spread evenly over it.

    If a file cannot be linked (too many links, another owner or file system), it is copied,
    and further links refer to the copy.
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
