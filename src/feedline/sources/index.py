"""Index of a folder of images and its classes, in a few numpy arrays.

Guarantees: the samples and class indices of torchvision.datasets.ImageFolder, in its order, stored
like `paths`; scanning ends, also if links form circles.

Relies on: os.scandir distinguishing files from folders without a stat of each. Needs no torch.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.sources.path_table import LabelledPaths, printable, starts_of
from feedline.system import slashed

__all__ = [
    "IMAGE_EXTENSIONS",
    "FolderIndex",
    "check_classes",
    "checked_endings",
    "folder_index",
    "other_images",
    "scan_folder",
    "table_hint",
    "warn_left_out",
    "without_images",
]

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's image file extensions, in lower case."""

_OTHER_IMAGES = (
    *(".gif", ".jfif", ".jpe", ".jp2", ".j2k", ".jxl", ".heic", ".heif", ".avif", ".apng"),
    *(".tga", ".ico", ".svg", ".dng", ".cr2", ".nef", ".arw"),
)
"""Extensions of images that torchvision ignores."""

_NAMED_IN_ERRORS = 5


@dataclass(frozen=True, eq=False)
class FolderIndex(LabelledPaths):
    """Files of a folder with one sub-folder per class: paths are relative to the class's folder.

    Args:
        classes: class names, sorted; labels, int32, are their indices.
    """

    classes: list[str]

    def path(self, sample: int) -> str:
        """Path of a file below the folder, "CLASS/...", as text with undecodable bytes escaped.

        A cache finds the copy of a file by it.
        """
        path = self._folder(self.labels[sample]) + self.name(sample)
        return printable(path).decode()

    def _folder(self, label: int) -> bytes:
        return os.fsencode(self.classes[label]) + b"/"

    def table(self) -> bytes:
        """Paths of all samples below the folder, "CLASS/...", each ended by a zero byte."""
        paths, parts = self.blob.tobytes(), []
        turns = np.flatnonzero(np.diff(self.labels)) + 1  # where another class begins
        edges = [0, *turns.tolist(), len(self)]
        for first, last in pairwise(edges if len(self) else []):
            folder = self._folder(self.labels[first])
            own = paths[self.starts[first] : self.starts[last] - 1]
            parts += [folder, own.replace(b"\0", b"\0" + folder), b"\0"]
        return b"".join(parts)

    def fingerprint(self) -> str:
        """Short hash of the number of samples, their relative paths and the class names.

        Equal for a moved folder, different if a file is added, removed or renamed. It does not
        depend on the files' contents.
        """
        digest = hashlib.blake2b(digest_size=8)
        digest.update(f"{len(self)} {len(self.classes)}\n".encode())
        digest.update(b"\0".join(map(os.fsencode, self.classes)))
        counts = np.bincount(self.labels, minlength=len(self.classes)).astype("<i8")
        digest.update(counts.tobytes())
        digest.update(self.blob.data)
        return digest.hexdigest()


def scan_folder(root: str, extensions: Sequence[str] | None = None) -> FolderIndex:
    """List the images under root/CLASS/, at any depth.

    See `ImageFolder` for the arguments and errors; extensions are case-insensitive.
    """
    endings = checked_endings(extensions)
    classes = _class_names(root, endings)
    left_out = Counter[str]()

    def chosen(files: list[str]) -> list[str]:
        images = sorted(file for file in files if file.lower().endswith(endings))
        if len(images) < len(files):
            left_out.update(other_images(files, endings))
        return images

    index = folder_index(
        classes,
        (
            ((prefix, chosen(files)) for prefix, files in _walk(os.path.join(root, name), root))
            for name in classes
        ),
    )
    warn_left_out(root, left_out)
    counts = np.bincount(index.labels, minlength=len(classes))
    empty = [classes[number] for number in np.flatnonzero(counts == 0)]
    if empty:
        others = (min(files) for _, files in _walk(os.path.join(root, empty[0]), root) if files)
        raise without_images(root, empty, len(classes), endings, next(others, ""))
    return index


def other_images(names: Iterable[str], endings: tuple[str, ...]) -> Iterator[str]:
    """Yield the extension of each image file that torchvision ignores.

    Args:
        names: names of the files.
        endings: extensions of images that are read; if a user set them, nothing is yielded.
    """
    for name in names if endings == IMAGE_EXTENSIONS else ():
        ending = os.path.splitext(name.lower())[1]
        if ending in _OTHER_IMAGES:
            yield ending


def warn_left_out(where: str, endings: Mapping[str, int]) -> None:
    """Warn of images that are ignored because of their extensions.

    Args:
        where: path or URL of the folder.
        endings: extensions of the images, with their numbers.
    """
    if endings:
        count = sum(endings.values())
        some = ", ".join(f"{number} {ending}" for ending, number in sorted(endings.items()))
        warnings.warn(
            f"{where!r}: ignored {count} file{'s' * (count > 1)}, like torchvision, because of the "
            f"extension: {some}. Convert such images, or pass extensions= in Python",
            stacklevel=3,
        )


def folder_index(
    classes: list[str], files: Iterable[Iterable[tuple[str, list[str]]]]
) -> FolderIndex:
    """Create an index of files.

    Args:
        classes: class names, sorted.
        files: for each class its folders, in their order: a prefix, and the names of the images in
            it, in theirs.
    """
    parts: list[bytes] = []
    counts: list[int] = []
    for folders in files:
        count = 0
        for prefix, chosen in folders:
            if chosen:
                count += len(chosen)
                # One string a folder, and a zero byte after each name: none can contain one.
                joint = f"\0{prefix}".join(chosen)
                parts.append(os.fsencode(f"{prefix}{joint}\0"))
        counts.append(count)
    blob = np.frombuffer(b"".join(parts), np.uint8)
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    return FolderIndex(blob=blob, starts=starts_of(blob), labels=labels, classes=classes)


def _class_names(root: str, endings: tuple[str, ...]) -> list[str]:
    classes = []
    image = ""
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if _is_folder(entry):
                    classes.append(entry.name)
                elif not image and entry.name.lower().endswith(endings):
                    image = entry.name
    except OSError as error:
        _refuse(error)
    check_classes(root, classes, image)
    return sorted(classes)


def check_classes(root: str, classes: Sequence[str], image: str) -> None:
    """Check that a folder has class folders.

    Args:
        root: its path or URL.
        classes: names of the folders in it.
        image: name of an image directly in it; "" for none.

    Raises:
        DatasetError: it has none.
    """
    if classes:
        return
    if image:
        raise DatasetError(
            f"{root!r} has no class folders: images such as {image!r} lie directly in it. Each "
            f"class needs a folder, e.g. {os.path.join(os.path.basename(root), 'cats', image)!r}",
            hint="move them there, or pass the parent folder, if this one is a class",
        )
    raise DatasetError(
        f"{root!r} has no class folders. It should have one folder per class with that class's "
        "images",
        hint="check the path, and whether an archive was unpacked",
    )


def _walk(top: str, root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder under `top`, which lies in `root`, as (prefix, file names).

    The order is torchvision's, of the whole paths as strings, in which "a-b" comes before "a/b".
    The prefix is the folder's path relative to `top` with a trailing "/", "" for `top`; its parts
    are separated by "/" on every platform, and so have the same order.
    A folder that is one of its own ancestors, through a link, is skipped.
    """
    found: list[tuple[str, list[str]]] = []
    for path, folders, files in os.walk(top, onerror=_refuse, followlinks=True):
        folders[:] = [name for name in folders if not _leads_back(os.path.join(path, name), root)]
        found.append((slashed(path[len(top) + 1 :]), files))
    for relative, files in sorted(found):
        yield (f"{relative}/" if relative else ""), files


def _refuse(error: OSError) -> NoReturn:
    """Raise the error of a folder that cannot be listed."""
    folder = error.filename
    if isinstance(error, FileNotFoundError):
        raise DatasetError(
            f"no such folder: {folder!r}",
            hint="the path may be misspelt, a disk not mounted, or the path relative to another "
            f"working directory (this one is {os.getcwd()!r})",
        ) from None
    if isinstance(error, NotADirectoryError):
        raise DatasetError(
            f"expected a folder of images, got a file: {folder!r}. Pass the folder that contains "
            "one folder per class; feedline.ImageFolder also reads .zip files and uncompressed "
            ".tar files, other archives must be unpacked first" + table_hint(folder)
        ) from None
    raise DatasetError(
        f"the folder {folder!r} cannot be listed: {error.strerror or error}. Its samples would be "
        "missing",
        hint="change its permissions, or move it out of the dataset",
    ) from error


def table_hint(path: str) -> str:
    """Hint for an error about a file that is a table of paths and labels; "" for others."""
    if not path.lower().endswith((".csv", ".tsv", ".parquet")):
        return ""
    make = "from_parquet" if path.lower().endswith(".parquet") else "from_csv"
    return (
        f". For a table of paths and labels use feedline.ImageList.{make}({path!r}, ...) in "
        "Python, with feedline.DataLoader and feedline.build_cache"
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # as os.walk: what cannot be told is no folder
        return False


def _leads_back(path: str, root: str) -> bool:
    """Return True if a folder under `root` is a link to one of its ancestors."""
    above = path if os.path.islink(path) else ""
    while len(above) > len(root):
        above = os.path.dirname(above)
        if os.path.samefile(path, above):
            return True
    return False


def checked_endings(extensions: Sequence[str] | None) -> tuple[str, ...]:
    """File extensions of images, in lower case, from a user's `extensions`."""
    if extensions is None:
        return IMAGE_EXTENSIONS
    endings = () if isinstance(extensions, str) else tuple(extensions)
    if not endings or not all(isinstance(e, str) and e.startswith(".") for e in endings):
        raise UsageError(f'extensions must be strings such as (".jpg", ".png"), got {extensions!r}')
    return tuple(ending.lower() for ending in endings)


def without_images(
    root: str, empty: list[str], classes: int, endings: tuple[str, ...], other: str
) -> DatasetError:
    """Error of class folders without images; `other` is a file in the first of them."""
    some = ", ".join(map(repr, empty[:_NAMED_IN_ERRORS]))
    if len(empty) > _NAMED_IN_ERRORS:
        some += f" and {len(empty) - _NAMED_IN_ERRORS} more"
    message = (
        f"class folders in {root!r} without images, {len(empty)} of {classes}: {some}. Looked for "
        f"names ending in {', '.join(endings)}"
    )
    if other:
        return DatasetError(
            f"{message}; there are other files such as {other!r}",
            hint="if they are images, pass their extension in extensions=(...); otherwise move the "
            "folder elsewhere",
        )
    return DatasetError(
        f"{message}. An empty folder would be a class without samples",
        hint="remove it, or copy the missing images",
    )
