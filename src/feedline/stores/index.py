"""Which files a folder of images holds, and their classes, in a few numpy arrays.

Guarantees: the samples and class numbers of torchvision.datasets.ImageFolder, in its order, kept
as `paths` keeps them; scanning ends, also where links lead in circles.

Relies on: os.scandir telling files from folders without a stat of each. Needs no torch.
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
from feedline.stores.path_table import LabelledPaths, printable, starts_of
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
"""What torchvision takes for an image, by the end of its name in lower case."""

_OTHER_IMAGES = (
    *(".gif", ".jfif", ".jpe", ".jp2", ".j2k", ".jxl", ".heic", ".heif", ".avif", ".apng"),
    *(".tga", ".ico", ".svg", ".dng", ".cr2", ".nef", ".arw"),
)
"""Images that torchvision leaves out, by the end of their names."""

_NAMED_IN_ERRORS = 5


@dataclass(frozen=True, eq=False)
class FolderIndex(LabelledPaths):
    """The files of a folder with one sub-folder a class: paths are relative to the class's folder.

    Args:
        classes: the names of the classes, sorted; labels, int32, number them.
    """

    classes: list[str]

    def path(self, sample: int) -> str:
        """A file's path below the folder, "CLASS/...", as text: odd bytes are escaped.

        By it a cache finds the copy of a file.
        """
        path = self._folder(self.labels[sample]) + self.name(sample)
        return printable(path).decode()

    def _folder(self, label: int) -> bytes:
        return os.fsencode(self.classes[label]) + b"/"

    def table(self) -> bytes:
        """The paths of all samples below the folder, "CLASS/...", each ended by a zero byte."""
        paths, parts = self.blob.tobytes(), []
        turns = np.flatnonzero(np.diff(self.labels)) + 1  # where another class begins
        edges = [0, *turns.tolist(), len(self)]
        for first, last in pairwise(edges if len(self) else []):
            folder = self._folder(self.labels[first])
            own = paths[self.starts[first] : self.starts[last] - 1]
            parts += [folder, own.replace(b"\0", b"\0" + folder), b"\0"]
        return b"".join(parts)

    def fingerprint(self) -> str:
        """A short hash of the number of samples, their relative paths and the class names.

        Equal for a moved folder, different once a file is added, removed or renamed. It does
        not see what is in the files.
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

    `ImageFolder` describes the arguments and errors; endings in upper and lower case are alike.
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
    """Give the ending of each file that is an image of a kind that torchvision leaves out.

    Args:
        names: of the files.
        endings: of the images that are read; if a user chose them, no other one is given.
    """
    for name in names if endings == IMAGE_EXTENSIONS else ():
        ending = os.path.splitext(name.lower())[1]
        if ending in _OTHER_IMAGES:
            yield ending


def warn_left_out(where: str, endings: Mapping[str, int]) -> None:
    """Warn of images that are left out because of their endings.

    Args:
        where: the path or the URL of the folder.
        endings: those of the images, with how many have them.
    """
    if endings:
        count = sum(endings.values())
        some = ", ".join(f"{number} {ending}" for ending, number in sorted(endings.items()))
        warnings.warn(
            f"{where!r}: {count} file{'s' * (count > 1)} left out, as torchvision does, because of "
            f"the ending: {some}. Convert such images, or pass extensions= in Python",
            stacklevel=3,
        )


def folder_index(
    classes: list[str], files: Iterable[Iterable[tuple[str, list[str]]]]
) -> FolderIndex:
    """The index of files that were found.

    Args:
        classes: the names of the classes, sorted.
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
    """See whether a folder has class folders.

    Args:
        root: its path or URL.
        classes: the names of the folders in it.
        image: the name of an image that lies directly in it; "" for none.

    Raises:
        DatasetError: it has none.
    """
    if classes:
        return
    if image:
        raise DatasetError(
            f"images of {root!r} were asked for, and images such as {image!r} lie directly in "
            "it. Each class needs a folder of its own, as in "
            f"{os.path.join(os.path.basename(root), 'cats', image)!r}: move them there, or give "
            "the folder above, if this one is a class"
        )
    raise DatasetError(
        f"images of {root!r} were asked for, and it holds no class folders. It should hold one "
        "folder for each class with that class's images: check the path, and whether an archive "
        "was unpacked"
    )


def _walk(top: str, root: str) -> Iterator[tuple[str, list[str]]]:
    """Give each folder under `top`, which lies in `root`, as (prefix, file names).

    The order is torchvision's, of the whole paths as strings, in which "a-b" comes before "a/b".
    The prefix is the folder's path relative to `top` with "/" behind it, "" for `top`; its parts
    are divided by "/" on every platform, and so come in the same order.
    A folder that is one of its own ancestors, through a link, is passed over.
    """
    found: list[tuple[str, list[str]]] = []
    for path, folders, files in os.walk(top, onerror=_refuse, followlinks=True):
        folders[:] = [name for name in folders if not _leads_back(os.path.join(path, name), root)]
        found.append((slashed(path[len(top) + 1 :]), files))
    for relative, files in sorted(found):
        yield (f"{relative}/" if relative else ""), files


def _refuse(error: OSError) -> NoReturn:
    """Say why a folder cannot be listed."""
    folder = error.filename
    if isinstance(error, FileNotFoundError):
        raise DatasetError(
            f"images of {folder!r} were asked for, and there is no such folder. A misspelt path, "
            "a disk that is not mounted, or a relative path from another working directory "
            f"(this one is {os.getcwd()!r})"
        ) from None
    if isinstance(error, NotADirectoryError):
        raise DatasetError(
            f"images of {folder!r} were asked for, and it is a file. Give the folder that holds "
            "one folder for each class; of archives, .zip files and uncompressed .tar files are "
            "read by feedline.ImageFolder, and others have to be unpacked first"
            + table_hint(folder)
        ) from None
    raise DatasetError(
        f"the folder {folder!r} cannot be listed: {error.strerror or error}. Samples would "
        "be missing without a word: change its permissions, or move it out of the dataset"
    ) from error


def table_hint(path: str) -> str:
    """What to do with a table of paths and labels, for an error about a file; "" for others."""
    if not path.lower().endswith((".csv", ".tsv", ".parquet")):
        return ""
    make = "from_parquet" if path.lower().endswith(".parquet") else "from_csv"
    return (
        f". A table of paths and labels is read in Python by feedline.ImageList.{make}({path!r}, "
        "...), for feedline.DataLoader and feedline.build_cache"
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # as os.walk: what cannot be told is no folder
        return False


def _leads_back(path: str, root: str) -> bool:
    """Whether a folder under `root` is a link to one that it lies in."""
    above = path if os.path.islink(path) else ""
    while len(above) > len(root):
        above = os.path.dirname(above)
        if os.path.samefile(path, above):
            return True
    return False


def checked_endings(extensions: Sequence[str] | None) -> tuple[str, ...]:
    """How the names of images end, in lower case, as a user's `extensions` say."""
    if extensions is None:
        return IMAGE_EXTENSIONS
    endings = () if isinstance(extensions, str) else tuple(extensions)
    if not endings or not all(isinstance(e, str) and e.startswith(".") for e in endings):
        raise UsageError(f'extensions must be strings such as (".jpg", ".png"), got {extensions!r}')
    return tuple(ending.lower() for ending in endings)


def without_images(
    root: str, empty: list[str], classes: int, endings: tuple[str, ...], other: str
) -> DatasetError:
    """The error of class folders that hold no images; `other` is a file in the first of them."""
    some = ", ".join(map(repr, empty[:_NAMED_IN_ERRORS]))
    if len(empty) > _NAMED_IN_ERRORS:
        some += f" and {len(empty) - _NAMED_IN_ERRORS} more"
    message = (
        f"class folders in {root!r} without images, {len(empty)} of {classes}: {some}. "
        f"Looked for names that end in {', '.join(endings)}. "
    )
    if other:
        return DatasetError(
            message + f"There are other files such as {other!r}: if they are images, pass their "
            "extension in extensions=(...); if not, move the folder elsewhere"
        )
    return DatasetError(
        message + "An empty folder would be a class that cannot be learnt: remove it, or copy the "
        "images that are missing"
    )
