"""Folders with one sub-folder per class: their index, their splits, and the store of their files.

Guarantees: the samples and class indices of torchvision.datasets.ImageFolder, in its order, in a
few numpy arrays; scanning ends, also if links form circles. A class named "train" is not mistaken
for a split: the folder of a split contains class folders or shards, that of a class images.

Relies on: os.scandir distinguishing files from folders without a stat of each. Needs no torch.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.sources.files import read_file
from feedline.sources.store import (
    IndexedStore,
    Numbers,
    PathTable,
    first_names,
    make_stamp,
    path_starts,
)
from feedline.system import LONG_PATH_HINT, long_path_problem, slashed
from feedline.text import plural

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's image file extensions, in lower case."""

_OTHER_IMAGES = (
    *(".gif", ".jfif", ".jpe", ".jp2", ".j2k", ".jxl", ".heic", ".heif", ".avif", ".apng"),
    *(".tga", ".ico", ".svg", ".dng", ".cr2", ".nef", ".arw"),
)
"""Extensions of images that torchvision ignores."""

TRAIN_NAME = "train"
VAL_NAMES = ("val", "valid", "validation", "test")

_SHARDS = (".tar", ".parquet")

Listing = tuple[Sequence[str], Sequence[str]]
"""Names of the sub-folders and of the files of a folder."""


class FileStore(IndexedStore):
    """Image files below a folder; a `SampleStore`.

    The folder, in the file system's bytes, is an absolute path that ends with a separator.
    """

    def __init__(self, paths: PathTable, folder: bytes) -> None:
        super().__init__(paths)
        self.folder = folder
        self.kind = "folder" if paths.classes else "files"

    def read(self, sample: int, side: int) -> bytes:
        return read_file(self.path(sample))

    def path(self, sample: int) -> bytes:
        """Absolute path of a sample's file; raises an IndexError if there is no such sample."""
        return self.folder + self.paths.name(sample)

    def name(self, sample: int) -> str:
        return self.path(sample).decode("utf-8", "backslashreplace")

    def key(self, sample: int) -> str:
        """Path of a sample below the dataset's folder."""
        return self.paths.path(sample)

    def local_path(self, sample: int) -> str:
        return os.fsdecode(self.path(sample))

    def stamp(self, sample: int) -> int:
        """Stamp of the file's size and modification time."""
        try:
            status = os.stat(self.path(sample))
        except OSError:  # reading it reports the error
            return 0
        return make_stamp(status.st_size, status.st_mtime_ns)

    def select(self, numbers: Numbers) -> FileStore:
        """Select files by index, in this order."""
        return FileStore(self.paths.select(numbers), self.folder)

    def without_repeats(self) -> FileStore:
        """Remove repeated files. A folder has none."""
        if self.paths.classes:
            return self
        firsts = self.paths.firsts()
        return self if len(firsts) == len(self) else self.select(firsts)


def folder_store(root: str, index: PathTable) -> FileStore:
    """Files of a folder of class folders, by its absolute path and its index."""
    return FileStore(index, os.fsencode(os.path.join(root, "")))


def scan_folder(root: str, extensions: Sequence[str] | None = None) -> PathTable:
    """List the images under root/CLASS/, at any depth; arguments and errors are `ImageFolder`'s."""
    endings = checked_extensions(extensions)
    classes = _class_names(root, endings)
    listings = (
        ((f"{name}/{prefix}", files) for prefix, files in _walk(os.path.join(root, name), root))
        for name in classes
    )
    return folder_index(root, classes, listings, endings)


def ignored_extensions(names: Iterable[str], endings: tuple[str, ...]) -> Iterator[str]:
    """Yield extensions of images that torchvision ignores, unless a user set the extensions."""
    for name in names if endings == IMAGE_EXTENSIONS else ():
        ending = os.path.splitext(name.lower())[1]
        if ending in _OTHER_IMAGES:
            yield ending


def warn_ignored(where: str, endings: Mapping[str, int]) -> None:
    """Warn of images that are ignored because of their extensions, with their numbers."""
    if endings:
        count = sum(endings.values())
        some = ", ".join(f"{number} {ending}" for ending, number in sorted(endings.items()))
        warnings.warn(
            f"{where!r}: ignored {plural(count, 'file')}, like torchvision, because of the "
            f"extension: {some}. Convert such images, or pass extensions= in Python",
            stacklevel=3,
        )


def folder_index(
    where: str,
    classes: list[str],
    listings: Iterable[Iterable[tuple[str, list[str]]]],
    endings: tuple[str, ...],
) -> PathTable:
    """Create the index of a folder with these sorted classes.

    `listings` has the folders of each class, in their order: a prefix such as "CLASS/inner/", and
    the names of the files in it. Raises a DatasetError if a class has no images.
    """
    parts: list[bytes] = []
    counts: list[int] = []
    ignored = Counter[str]()
    empty: list[str] = []
    other = ""  # a file of the first class without images
    for name, folders in zip(classes, listings, strict=True):
        count, some = 0, ""
        for prefix, files in folders:
            images = sorted(file for file in files if file.lower().endswith(endings))
            if len(images) < len(files):
                ignored.update(ignored_extensions(files, endings))
            if images:
                count += len(images)
                # One string a folder, and a zero byte after each name: none can contain one.
                joint = f"\0{prefix}".join(images)
                parts.append(os.fsencode(f"{prefix}{joint}\0"))
            elif files:
                some = some or min(files)
        counts.append(count)
        if not count:
            other = other if empty else some
            empty.append(name)
    warn_ignored(where, ignored)
    if empty:
        raise _no_images(where, empty, len(classes), endings, other)
    blob = np.frombuffer(b"".join(parts), np.uint8)
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    return PathTable(blob=blob, starts=path_starts(blob), labels=labels, classes=classes)


def group_by_folder(paths: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Folders of sorted paths, each as a prefix such as "CLASS/inner/", and the names in it."""
    groups = itertools.groupby((path.rpartition("/") for path in paths), lambda parts: parts[0])
    return [(f"{prefix}/", [name for *_, name in group]) for prefix, group in groups]


def _class_names(root: str, endings: tuple[str, ...]) -> list[str]:
    _, classes, files = next(os.walk(root, onerror=_raise_unlisted))
    image = next((name for name in files if name.lower().endswith(endings)), "")
    check_classes(root, classes, image)
    return sorted(classes)


def check_classes(root: str, classes: Sequence[str], image: str) -> None:
    """Raise a DatasetError if a folder has no class folders; `image` is one directly in it."""
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
    The prefix is the relative path with a trailing "/", "" for `top`, with "/" on every platform. A
    folder that is one of its own ancestors, through a link, is skipped.
    """
    found: list[tuple[str, list[str]]] = []
    for path, folders, files in os.walk(top, onerror=_raise_unlisted, followlinks=True):
        folders[:] = [name for name in folders if not _leads_back(os.path.join(path, name), root)]
        found.append((slashed(path[len(top) + 1 :]), files))
    for relative, files in sorted(found):
        yield (f"{relative}/" if relative else ""), files


def _raise_unlisted(error: OSError) -> NoReturn:
    folder = error.filename
    if problem := long_path_problem(folder):
        raise DatasetError(
            f"the folder {folder!r} cannot be listed: {problem}", hint=LONG_PATH_HINT
        ) from None
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


def _leads_back(path: str, root: str) -> bool:
    """Return True if a folder under `root` is a link to one of its ancestors."""
    above = path if os.path.islink(path) else ""
    while len(above) > len(root):
        above = os.path.dirname(above)
        if os.path.samefile(path, above):
            return True
    return False


def checked_extensions(extensions: Sequence[str] | None) -> tuple[str, ...]:
    """File extensions of images, in lower case, from a user's `extensions`."""
    if extensions is None:
        return IMAGE_EXTENSIONS
    endings = () if isinstance(extensions, str) else tuple(extensions)
    if not endings or not all(isinstance(e, str) and e.startswith(".") for e in endings):
        raise UsageError(
            f'must be strings such as (".jpg", ".png"), got {extensions!r}', argument="extensions"
        )
    return tuple(ending.lower() for ending in endings)


class EmptyClassError(DatasetError):
    """A folder has class folders, and some have no images."""


def _no_images(
    root: str, empty: list[str], classes: int, endings: tuple[str, ...], other: str
) -> EmptyClassError:
    """Error of class folders without images; `other` is a file in the first of them."""
    message = (
        f"class folders in {root!r} without images, {len(empty)} of {classes}: "
        f"{first_names(empty)}. Looked for names ending in {', '.join(endings)}"
    )
    if other:
        return EmptyClassError(
            f"{message}; there are other files such as {other!r}",
            hint="if they are images, pass their extension in extensions=(...); otherwise move the "
            "folder elsewhere",
        )
    return EmptyClassError(
        f"{message}. An empty folder would be a class without samples",
        hint="remove it, or copy the missing images",
    )


def splits_in(folders: Collection[str], look: Callable[[str], Listing]) -> list[str]:
    """Return the names of the split folders, "train" first; [] if the folders are classes.

    They are splits if "train" contains class folders or shards, and either a folder of validation
    images does, too, or no other folder can be a class. `look` lists a folder.
    """

    def divided(name: str) -> bool:
        inner, files = look(name)
        return any(not each.startswith(".") for each in inner) or any(
            file.lower().endswith(_SHARDS) for file in files
        )

    def may_be_class(name: str) -> bool:
        inner, files = look(name)
        return bool(inner) or any(file.lower().endswith(IMAGE_EXTENSIONS) for file in files)

    if TRAIN_NAME not in folders or not divided(TRAIN_NAME):
        return []
    splits = [name for name in VAL_NAMES if name in folders]
    others = (
        name
        for name in folders
        if name not in (TRAIN_NAME, *VAL_NAMES) and not name.startswith(".")
    )
    if any(map(divided, splits)) or not any(map(may_be_class, others)):
        return [TRAIN_NAME, *splits]
    return []


def splits_of(index: PathTable) -> list[str]:
    """Return those of an index's classes that are split folders; see `splits_in`."""

    def look(name: str) -> Listing:
        # Files directly in a class come before those of its folders.
        last = int(np.searchsorted(index.labels, index.classes.index(name), "right")) - 1
        _, *folders, file = index.path(last).split("/")
        return folders[:1], [file]

    return splits_in(index.classes, look)


def split_hint(root: object, splits: Sequence[str]) -> str:
    """Describe a folder with splits, and name the paths to use."""
    root = str(root).rstrip("/")
    return (
        f"{root!r} contains {' and '.join(f'{name}/' for name in splits)}, which are splits, not "
        f"classes. Use one of them: {' or '.join(repr(f'{root}/{name}') for name in splits)}"
    )
