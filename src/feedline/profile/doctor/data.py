"""Data folder: a cache, a folder of images, or something else."""

from __future__ import annotations

import importlib.util
import os
import shlex
from dataclasses import dataclass

from feedline.errors import DatasetError, UsageError
from feedline.profile.doctor.check import CheckResult
from feedline.profile.doctor.folder import FolderContents, FoundFile, scan_folder
from feedline.sources.cache_formats import cache_format
from feedline.sources.manifest import Manifest, is_cache, read_manifest, repair_command
from feedline.sources.remote_filesystem import is_url
from feedline.text import as_bytes, plural

__all__ = ["DataFolder", "inspect_data", "require_folder", "skip_data"]

_SCAN_S = 0.2  # up to two times: to list, to read sizes
_MAX_EXTENSIONS = 10


@dataclass(frozen=True, kw_only=True)
class DataFolder:
    """Contents of a data folder.

    Args:
        check: the result of the check.
        sample: some of its files.
        bytes: upper limit of the bytes read per epoch; None if unknown.
        at_least: there may be more than `bytes`.
        things: name of the sample's files, plural.
    """

    check: CheckResult
    sample: tuple[FoundFile, ...]
    bytes: int | None
    at_least: bool
    things: str


def require_folder(folder: str) -> None:
    """Check that a folder exists and can be listed.

    Raises:
        UsageError: it does not, or cannot.
    """
    if is_url(folder):
        raise UsageError(
            f"DIR {folder!r} is a URL; only folders of this machine can be checked",
            hint="`feedline cache info URL` describes a cache there",
        )
    try:
        with os.scandir(folder):
            pass
    except FileNotFoundError:
        raise UsageError(
            f"DIR {folder!r} does not exist (the working directory is {os.getcwd()!r})",
            hint="check the path, and if the disk is mounted",
        ) from None
    except NotADirectoryError:
        raise UsageError(
            f"DIR {folder!r} is a file", hint="name the folder that contains it"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"DIR {folder!r} cannot be listed: {getattr(error, 'strerror', None) or error}",
            hint="check its permissions",
        ) from None


def skip_data() -> CheckResult:
    """Return the check "data-folder" if no folder was given."""
    return CheckResult(
        id="data-folder",
        status="unknown",
        summary="no folder was given, so no disk was checked",
        fix="feedline doctor DIR, with the folder of your images or of a cache",
    )


def inspect_data(folder: str) -> DataFolder:
    """Inspect a folder, with the check "data-folder".

    Args:
        folder: a folder that can be listed.
    """
    return _cache(folder) if is_cache(folder) else _files(folder)


def _cache(folder: str) -> DataFolder:
    """Inspect a cache: an epoch reads at most its largest level."""
    try:
        manifest = read_manifest(folder)
    except DatasetError as error:
        check = CheckResult(
            id="data-folder",
            status="warn",
            summary=error.message,
            details={"kind": "cache", "finished": False},
            fix="run the same `feedline cache build` again: it continues where it stopped",
        )
        return DataFolder(check=check, sample=(), bytes=None, at_least=False, things="files")
    largest = max(manifest.levels, key=lambda level: level.bytes)
    levels = ", ".join(f"{level} {as_bytes(level.bytes)}" for level in manifest.levels)
    details = {
        "kind": "cache",
        "finished": True,
        "format": manifest.format,
        "images": manifest.samples,
        "levels": [{"size_px": each.side, "bytes": each.bytes} for each in manifest.levels],
    }
    line = f"feedline cache, {manifest.format}: {manifest.samples:,} images as {levels}"
    place = os.path.join(folder, largest.name)
    sample = scan_folder(place, _SCAN_S).sample if os.path.isdir(place) else ()
    missing = _missing_library(manifest)
    if missing or not sample:
        check = CheckResult(
            id="data-folder",
            status="fail",
            summary=f"{line}; {missing or f'no file of {largest.name}/ can be read'}",
            details=details,
            fix=f"pip install {cache_format(manifest.format).package}"
            if missing
            else repair_command(folder),
        )
    else:
        check = CheckResult(id="data-folder", status="ok", summary=line, details=details)
    things = "images" if cache_format(manifest.format).is_file_per_image else "files"
    return DataFolder(
        check=check, sample=sample, bytes=largest.bytes, at_least=False, things=things
    )


def _missing_library(manifest: Manifest) -> str:
    package = cache_format(manifest.format).package
    absent = package and importlib.util.find_spec(package) is None
    return f"the package {package}, which is needed to read it, is not installed" if absent else ""


def _files(folder: str) -> DataFolder:
    """Inspect a folder of images, or of anything else."""
    found = scan_folder(folder, _SCAN_S)
    kind = "images" if found.images else "other" if found.files else "empty"
    count = found.images or found.files
    total = None if found.mean_bytes is None else round(count * found.mean_bytes)
    at_least = not found.complete
    details = {
        "kind": kind,
        "files_seen": found.files,
        "images_seen": found.images,
        "folders_seen": found.folders,
        "folders_unreadable": found.unreadable,
        "all_seen": found.complete,
        "mean_file_bytes": None if found.mean_bytes is None else round(found.mean_bytes),
        "bytes_estimated": None if at_least else total,
        "endings": dict(list(found.endings.items())[:_MAX_EXTENSIONS]),
    }
    line = _describe(found, count, total)
    if kind == "images" and not found.unreadable:
        check = CheckResult(id="data-folder", status="ok", summary=line, details=details)
    elif found.unreadable:
        check = CheckResult(
            id="data-folder",
            status="warn",
            summary=f"{line}; {found.unreadable} of its folders cannot be listed",
            details=details,
            fix=f"change their permissions (find {shlex.quote(folder)} -type d ! -readable)",
        )
    elif {".tar", ".parquet"} & set(found.endings):
        check = CheckResult(
            id="data-folder",
            status="note",
            summary=f"{line}; `feedline cache build` builds a cache from tar shards or Parquet "
            "files",
            details=details,
        )
    else:
        check = CheckResult(
            id="data-folder",
            status="warn",
            summary=line,
            details=details,
            fix="name the folder of your images; check if an archive needs unpacking or a disk "
            "mounting",
        )
    return DataFolder(
        check=check,
        sample=found.sample,
        bytes=total,
        at_least=at_least,
        things="images" if found.images else "files",
    )


def _describe(found: FolderContents, count: int, total: int | None) -> str:
    if not found.files:
        return "the folder is empty" if found.complete else "no file was found in time"
    about = "" if found.complete else "more than "
    size = "" if total is None else f", {about}{as_bytes(total)}"
    if found.images:
        line = f"{about}{plural(count, 'image')}{size}"
        if found.class_folders:
            line += f", in {plural(found.class_folders, 'folder')}"
        return line + ("" if found.complete else " (the listing did not finish)")
    common = ", ".join(
        f"{number:,} {ending or 'without an extension'}"
        for ending, number in list(found.endings.items())[:3]
    )
    return f"no images; {about}{count:,} files{size} ({common})"
