"""What the folder of the data is: a cache, a folder of images, or something else."""

from __future__ import annotations

import importlib.util
import os
import shlex
from dataclasses import dataclass

from rich.filesize import decimal

from feedline.doctor.check import Check
from feedline.doctor.folder import Contents, File, look_into
from feedline.errors import DatasetError, UsageError
from feedline.remote.filesystem import is_url
from feedline.stores.cache_layout import Manifest, is_cache, read_manifest

__all__ = ["Data", "check_folder", "data_in", "no_data"]

_LOOK_S = 0.15  # up to three times: to list, to estimate, to ask for sizes
_MOST_ENDINGS = 10


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a folder holds.

    Args:
        check: that says it.
        sample: of its files, some.
        bytes: what an epoch reads at most; None where that is not known.
        at_least: it may be more than `bytes`.
        things: what a file of the sample is, in the plural.
    """

    check: Check
    sample: tuple[File, ...]
    bytes: int | None
    at_least: bool
    things: str


def check_folder(folder: str) -> None:
    """See that a folder is there and can be listed.

    Raises:
        UsageError: it is not.
    """
    if is_url(folder):
        raise UsageError(
            f"DIR {folder!r} is a URL, and only folders of this machine are looked at; "
            "`feedline cache info URL` says what a cache there gives"
        )
    try:
        with os.scandir(folder):
            pass
    except FileNotFoundError:
        raise UsageError(
            f"DIR {folder!r} does not exist (the working directory is {os.getcwd()!r}); check the "
            "path, and whether the disk is mounted"
        ) from None
    except NotADirectoryError:
        raise UsageError(f"DIR {folder!r} is a file; name the folder that it lies in") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"DIR {folder!r} cannot be listed: {getattr(error, 'strerror', None) or error}; "
            "check its permissions"
        ) from None


def no_data() -> Check:
    """The check "data-folder" where none was named."""
    return Check(
        id="data-folder",
        status="unknown",
        summary="no folder was named, so no disk was looked at",
        fix="feedline doctor DIR, with the folder of your images or of a cache",
    )


def data_in(folder: str) -> Data:
    """What a folder holds, with the check "data-folder" that says it.

    Args:
        folder: one that can be listed.
    """
    return _cache(folder) if is_cache(folder) else _files(folder)


def _cache(folder: str) -> Data:
    """A cache of feedline's: an epoch reads at most its largest level."""
    try:
        manifest = read_manifest(folder)
    except DatasetError as error:
        check = Check(
            id="data-folder",
            status="warn",
            summary=str(error),
            details={"kind": "cache", "finished": False},
            fix="build it to its end: the same `feedline cache build` goes on where it stopped",
        )
        return Data(check=check, sample=(), bytes=None, at_least=False, things="files")
    largest = max(manifest.levels, key=lambda level: level.bytes)
    levels = ", ".join(f"{level} {decimal(level.bytes)}" for level in manifest.levels)
    details = {
        "kind": "cache",
        "finished": True,
        "format": manifest.format,
        "images": manifest.samples,
        "levels": [{"size_px": each.side, "bytes": each.bytes} for each in manifest.levels],
    }
    line = f"a cache of feedline's, {manifest.format}: {manifest.samples:,} images as {levels}"
    place = os.path.join(folder, largest.name)
    sample = look_into(place, _LOOK_S).sample if os.path.isdir(place) else ()
    missing = _missing_library(manifest)
    if missing or not sample:
        check = Check(
            id="data-folder",
            status="fail",
            summary=f"{line}; {missing or f'nothing can be read of {largest.name}/'}",
            details=details,
            fix="pip install lmdb" if missing else f"feedline cache verify {shlex.quote(folder)}",
        )
    else:
        check = Check(id="data-folder", status="ok", summary=line, details=details)
    things = "images" if manifest.format == "folder" else "files"
    return Data(check=check, sample=sample, bytes=largest.bytes, at_least=False, things=things)


def _missing_library(manifest: Manifest) -> str:
    absent = manifest.format == "lmdb" and importlib.util.find_spec("lmdb") is None
    return "the package lmdb, which reads it, is not installed" if absent else ""


def _files(folder: str) -> Data:
    """A folder of images, or of anything else."""
    found = look_into(folder, _LOOK_S)
    kind = "images" if found.images else "other" if found.files else "empty"
    seen = found.images or found.files
    count = seen if found.estimated_files is None else found.estimated_files
    total = None if found.mean_bytes is None else round(count * found.mean_bytes)
    at_least = not found.complete and found.estimated_files is None
    details = {
        "kind": kind,
        "files_seen": found.files,
        "images_seen": found.images,
        "folders_seen": found.folders,
        "folders_unreadable": found.unreadable,
        "all_seen": found.complete,
        "images_estimated": count if found.images and not at_least else None,
        "mean_file_bytes": None if found.mean_bytes is None else round(found.mean_bytes),
        "bytes_estimated": None if at_least else total,
        "endings": dict(list(found.endings.items())[:_MOST_ENDINGS]),
    }
    line = _in_words(found, count, at_least, total)
    if kind == "images" and not found.unreadable:
        check = Check(id="data-folder", status="ok", summary=line, details=details)
    elif found.unreadable:
        check = Check(
            id="data-folder",
            status="warn",
            summary=f"{line}; {found.unreadable} of its folders cannot be listed",
            details=details,
            fix=f"change their permissions (find {shlex.quote(folder)} -type d ! -readable)",
        )
    elif {".tar", ".parquet"} & set(found.endings):
        check = Check(
            id="data-folder",
            status="note",
            summary=f"{line}; `feedline cache build` makes a cache of tar shards or Parquet files",
            details=details,
        )
    else:
        check = Check(
            id="data-folder",
            status="warn",
            summary=line,
            details=details,
            fix="name the folder of your images; check whether an archive was unpacked, and a disk "
            "mounted",
        )
    return Data(
        check=check,
        sample=found.sample,
        bytes=total,
        at_least=at_least,
        things="images" if found.images else "files",
    )


def _in_words(found: Contents, count: int, at_least: bool, total: int | None) -> str:
    if not found.files:
        return "it is empty" if found.complete else "no file was found in it in time"
    about = "more than " if at_least else "" if found.complete else "about "
    size = "" if total is None else f", {about}{decimal(total)}"
    if found.images:
        line = f"{about}{count:,} image{'s' * (count != 1)}{size}"
        if found.class_folders:
            line += f", in {found.class_folders:,} folder{'s' * (found.class_folders != 1)}"
        return line + (" (seen, not counted to the end)" if at_least else "")
    common = ", ".join(
        f"{number:,} {ending or 'without an ending'}"
        for ending, number in list(found.endings.items())[:3]
    )
    return f"no images; {about}{count:,} files{size} ({common})"
