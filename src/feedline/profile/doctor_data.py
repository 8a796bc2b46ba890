"""Checks of the data folder: contents, disk and read rate.

Guarantees: a folder is listed, and files are read, for a fraction of a second, even with circular
links; an incomplete listing is reported as such. Files are only read; the few that are read are
dropped from memory first, so that the disk is measured; if that is impossible, the result says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import stat
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean

from feedline.errors import DatasetError, UsageError
from feedline.machine import Disk, DiskKind, FilePart, ReadFrom, drop_from_memory
from feedline.profile.doctor_machine import CheckResult, NotMeasuredError, Status
from feedline.sources.cache_formats import cache_format
from feedline.sources.folder import IMAGE_EXTENSIONS
from feedline.sources.manifest import is_cache, read_manifest, repair_command
from feedline.sources.remote_filesystem import is_url
from feedline.system import MemoryLimits
from feedline.text import as_bytes, plural, shell_command
from feedline.throughput.thresholds import THRESHOLDS

_SCAN_S = 0.2  # up to two times: to list, to read sizes
_MAX_ENTRIES = 200_000
_SAMPLE = 256  # files
_MAX_EXTENSIONS = 10


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
        os.scandir(folder).close()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"DIR {folder!r} cannot be listed: {why} (the working directory is {os.getcwd()!r})",
            hint="name a folder; check its permissions, and if the disk is mounted",
        ) from None


@dataclass
class FolderContents:
    """Contents of a folder: paths by extension, as far as seen, and the folders below it."""

    files: dict[str, list[str]] = field(default_factory=dict)
    folders: int = 0
    unreadable: int = 0  # folders that could not be listed
    complete: bool = True

    def named(self, endings: Collection[str]) -> list[str]:
        """Paths of the files with one of these extensions."""
        return [path for each in endings for path in self.files.get(each, ())]


def scan_folder(root: str, seconds: float) -> FolderContents:
    """Scan a folder for `seconds`, breadth first and in random order, to see some of all parts.

    Raises:
        OSError: it cannot be listed.
    """
    found, queue, chance = FolderContents(), deque([root]), random.Random(0)
    seen, end = 0, time.monotonic() + seconds
    while queue:
        folder, inner = queue.popleft(), list[str]()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MAX_ENTRIES or time.monotonic() > end:
                        found.complete = False
                        return found
                    if not _is_folder(entry):
                        extension = os.path.splitext(entry.path)[1].lower()
                        found.files.setdefault(extension, []).append(entry.path)
                    elif not (entry.is_symlink() and _leads_back(entry.path)):
                        inner.append(entry.path)
        except OSError:
            if folder == root:
                raise
            found.unreadable += 1
            found.complete = False
        found.folders += len(inner)
        chance.shuffle(inner)
        queue += inner
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # an unreadable entry is not a folder
        return False


def _leads_back(path: str) -> bool:
    """Return True if a link leads to a folder that contains it."""
    real, above = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
    return above == real or above.startswith(real.rstrip(os.sep) + os.sep)


def sample_files(paths: Sequence[str], seconds: float) -> list[FilePart]:
    """Sample regular files at random, with their sizes; fewer if `seconds` are over."""
    files, end = list[FilePart](), time.monotonic() + seconds
    for path in random.Random(0).sample(paths, min(_SAMPLE, len(paths))):
        if time.monotonic() > end:
            break
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):  # reading a pipe or device may not end
                files.append(FilePart(path, 0, status.st_size))
    return files


@dataclass(frozen=True)
class DataFolder:
    """Contents of a data folder: the result of its check, and some of its files."""

    result: CheckResult
    sample: Sequence[FilePart] = ()
    bytes: int | None = None
    """Upper limit of the bytes read per epoch; None if unknown."""
    at_least: bool = False
    """There may be more than `bytes`."""


def inspect_data(folder: str | None) -> DataFolder:
    """Inspect a folder, which can be listed: a cache, images, or anything else."""
    if folder is None:
        raise NotMeasuredError(
            "no folder was given, so no disk was checked",
            "feedline doctor DIR, with the folder of your images or of a cache",
        )
    return _inspect_cache(folder) if is_cache(folder) else _inspect_files(folder)


def _inspect_cache(folder: str) -> DataFolder:
    """Inspect a cache: an epoch reads at most its largest resolution."""
    try:
        manifest = read_manifest(folder)
    except DatasetError as error:
        unfinished = {"kind": "cache", "finished": False}
        fix = "run the same `feedline cache build` again: it continues where it stopped"
        return DataFolder(CheckResult("warn", error.message, unfinished, fix))
    largest = max(manifest.levels, key=lambda level: level.bytes)
    details = {
        "kind": "cache",
        "finished": True,
        "format": manifest.format,
        "images": manifest.samples,
        "levels": [{"size_px": each.side, "bytes": each.bytes} for each in manifest.levels],
    }
    line = f"feedline cache, {manifest.format}: {manifest.samples:,} images as "
    line += ", ".join(f"{level} {as_bytes(level.bytes)}" for level in manifest.levels)
    place, package = os.path.join(folder, largest.name), cache_format(manifest.format).package
    found = scan_folder(place, _SCAN_S) if os.path.isdir(place) else FolderContents()
    sample = sample_files(found.named(found.files), _SCAN_S)
    result = CheckResult("ok", line, details)
    if package and importlib.util.find_spec(package) is None:
        line += f"; the package {package}, which is needed to read it, is not installed"
        result = CheckResult("fail", line, details, f"pip install {package}")
    elif not sample:
        line += f"; no file of {largest.name}/ can be read"
        result = CheckResult("fail", line, details, repair_command(folder))
    return DataFolder(result, sample, largest.bytes)


def _inspect_files(folder: str) -> DataFolder:
    """Inspect a folder of images, or of anything else."""
    found = scan_folder(folder, _SCAN_S)
    images, files = found.named(IMAGE_EXTENSIONS), found.named(found.files)
    counts = {ending: len(paths) for ending, paths in found.files.items()}
    common = sorted(counts, key=lambda ending: -counts[ending])[:_MAX_EXTENSIONS]
    sample = sample_files(images or files, _SCAN_S)
    mean_bytes = mean(file.bytes for file in sample) if sample else None
    total = None if mean_bytes is None else round(len(images or files) * mean_bytes)
    details = {
        "kind": "images" if images else "other" if files else "empty",
        "files_seen": len(files),
        "images_seen": len(images),
        "folders_seen": found.folders,
        "folders_unreadable": found.unreadable,
        "all_seen": found.complete,
        "mean_file_bytes": None if mean_bytes is None else round(mean_bytes),
        "bytes_estimated": total if found.complete else None,
        "endings": {ending: counts[ending] for ending in common},
    }
    about = "" if found.complete else "more than "
    size = "" if total is None else f", {about}{as_bytes(total)}"
    status: Status = "ok" if images else "warn"
    if images:
        line, fix = f"{about}{plural(len(images), 'image')}{size}", ""
        line += f", in {plural(found.folders, 'folder')}" if found.folders else ""
        line += "" if found.complete else " (the listing did not finish)"
    else:
        names = (f"{counts[each]:,} {each or 'without an extension'}" for each in common[:3])
        line = f"no images; {about}{plural(len(files), 'file')}{size} ({', '.join(names)})"
        fix = "name the folder of your images; check if an archive needs unpacking or a disk "
        fix += "mounting"
        if not files:
            line = "the folder is empty" if found.complete else "no file was found in time"
        elif {".tar", ".parquet"} & set(counts):
            status, fix = "note", ""
            line += "; `feedline cache build` builds a cache from tar shards or Parquet files"
    if found.unreadable:
        status, line = "warn", f"{line}; {found.unreadable} of its folders cannot be listed"
        fix = f"change their permissions (find {shell_command(folder)} -type d ! -readable)"
    return DataFolder(CheckResult(status, line, details, fix), sample, total, not found.complete)


def check_data_folder(data: DataFolder) -> CheckResult:
    """Check the contents of the folder."""
    return data.result


_KINDS: dict[DiskKind, str] = {
    "nvme": "a local NVMe disk",
    "ssd": "a local SSD",
    "hdd": "a local hard disk: each file costs a seek",
    "virtual": "a virtual machine's disk; the physical disk is unknown",
    "network": "a network or FUSE file system",
    "host": "a folder of this virtual machine's host",
    "memory": "memory: its contents reduce the memory for everything else",
    "layers": "a container's layers, slower than a mounted folder of the host",
    "unknown": "a disk of unknown kind",
}


def check_disk(disk: Disk) -> CheckResult:
    """Describe the disk of the folder."""
    details = asdict(disk)
    if disk.kind == "unknown" and not disk.file_system:
        return CheckResult("unknown", "this machine does not report it", details)
    line = f"{disk.file_system} at {disk.mount_point}"
    line += f" ({disk.device or disk.source})" if disk.device or disk.source else ""
    status: Status = "ok" if disk.kind in ("nvme", "ssd") else "note"
    status = "unknown" if disk.kind == "unknown" else status
    return CheckResult(status, f"{line}, {_KINDS[disk.kind]}", details)


DECODED_BYTES_PER_S = 92e6
"""JPEG bytes that one core decodes, crops and resizes per second: 837 photographs of 110 KB
(README, `feedline bench`). A disk that delivers less than that for each core keeps them waiting."""

_READ_S = 0.4
_MIN_BYTES = 4_000_000
"""A shorter read, of all there was, is too noisy to report a fault."""
_PART_BYTES = 16 << 20  # at the start of a longer file, such as a shard of many images
_BLOCK_BYTES = 256 << 10
_MAX_READERS = 16


@dataclass(frozen=True, kw_only=True)
class ReadRate:
    """Bytes read by parallel threads in a short time."""

    bytes: int
    files: int | None
    """Number of files read to their ends; None if only parts of files were read."""
    seconds: float
    readers: int
    read_from: ReadFrom


def find_read_rate(data: DataFolder, workers: int) -> ReadRate | None:
    """Read some of the files, with as many readers as a loader has workers."""
    return measure_read_rate(data.sample, readers=max(1, workers), seconds=_READ_S)


def measure_read_rate(
    files: Sequence[FilePart], *, readers: int, seconds: float
) -> ReadRate | None:
    """Read some whole files for `seconds` plus one read of a block; None if none could be read."""
    starts = [FilePart(each.path, 0, min(each.bytes, _PART_BYTES)) for each in files if each.bytes]
    read_from, parts = drop_from_memory(starts)
    queue, counts = deque(parts), list[tuple[int, bool]]()
    readers = min(readers, _MAX_READERS, max(1, len(parts)))
    start, end = time.perf_counter(), time.monotonic() + seconds

    def work() -> None:
        with contextlib.suppress(IndexError):  # the queue is empty
            while time.monotonic() <= end:
                part = queue.popleft()
                count = _read(part, end)
                counts.append((count, count == part.bytes))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    count, files_read = (sum(each) for each in zip((0, 0), *counts, strict=True))
    if not count:
        return None
    has_long_file = any(file.bytes > _PART_BYTES for file in files)
    return ReadRate(
        bytes=count,
        files=None if has_long_file else files_read or None,
        seconds=seconds,
        readers=readers,
        read_from=read_from,
    )


def _read(part: FilePart, end: float) -> int:
    """Read a part until its end or the deadline. Returns the number of bytes."""
    count, buffer = 0, bytearray(_BLOCK_BYTES)
    with contextlib.suppress(OSError), open(part.path, "rb", buffering=0) as file:
        while count < part.bytes and time.monotonic() <= end and (got := file.readinto(buffer)):
            count += got
    return min(count, part.bytes)


def is_cached(data: DataFolder, disk: Disk, memory: MemoryLimits | None = None) -> bool | None:
    """True if memory holds all data of an epoch; None if unknown."""
    if disk.kind == "memory":
        return True
    if data.bytes is None or memory is None:
        return None
    if data.bytes > memory.cacheable:
        return False
    return None if data.at_least else True


def check_read_rate(
    disk: Disk, read_rate: ReadRate | None, workers: int, cached: bool | None
) -> CheckResult:
    """Check that the disk is faster than the cores decode, or needed for one epoch only."""
    rate, wanted = read_rate, workers * DECODED_BYTES_PER_S
    if rate is None:
        return CheckResult("unknown", "there is no file that can be read")
    read_from = "memory" if disk.kind == "memory" else rate.read_from
    bytes_per_s = rate.bytes / rate.seconds
    files_per_s = None if rate.files is None else round(rate.files / rate.seconds, 1)
    details = {
        **asdict(rate),
        "bytes_per_s": round(bytes_per_s),
        "files_per_s": files_per_s,
        "seconds": round(rate.seconds, 4),
        "read_from": read_from,
        "cores_decode_bytes_per_s": round(wanted),
    }
    line = f"{as_bytes(bytes_per_s)}/s"
    line += "" if files_per_s is None else f", {files_per_s:,.0f} files a second,"
    source = "from the disk" if read_from == "disk" else "from memory"
    if read_from == "unknown":
        source = "maybe from memory (this file system does not report it)"
    line += f" with {plural(rate.readers, 'reader')} "
    line += f"({as_bytes(rate.bytes)} in {rate.seconds:.2f} s), {source}"
    if rate.bytes < _MIN_BYTES and rate.seconds < _READ_S / 2:
        return CheckResult("note", f"{line}; too little to rate the disk", details)
    if read_from != "disk":
        return CheckResult("note", line, details)
    if bytes_per_s >= wanted:
        return CheckResult("ok", line, details)
    line += f"; {plural(workers, 'core')} decode about {as_bytes(wanted)}/s, so "
    if cached:
        return CheckResult("note", f"{line}the first epoch may wait for it", details)
    if bytes_per_s >= THRESHOLDS.fast_enough * wanted:
        return CheckResult("note", f"{line}training may sometimes wait for it", details)
    line += "training waits for it" + ("" if cached is False else ", unless memory holds the data")
    fix = "copy the data to a local SSD, or make smaller copies: `feedline cache plan` "
    fix += "recommends sizes"
    return CheckResult("warn", line, details, fix)


def check_page_cache(
    data: DataFolder, disk: Disk, cached: bool | None, memory: MemoryLimits | None = None
) -> CheckResult:
    """Check if memory holds the data of an epoch."""
    cacheable = None if memory is None else memory.cacheable
    details = {
        "data_bytes": data.bytes,
        "data_is_more": data.at_least,
        "page_cache_may_hold_bytes": cacheable,
        "fits": cached,
    }
    if disk.kind == "memory":
        return CheckResult("ok", "the data are in memory already", details)
    if data.bytes is None or cacheable is None:
        return CheckResult("unknown", "the size of the data is unknown", details)
    line = f"memory can hold {as_bytes(cacheable)} of files; the data have "
    line += f"{'more than ' if data.at_least else ''}{as_bytes(data.bytes)}"
    if cached is None:
        return CheckResult("unknown", line, details)
    if cached:
        return CheckResult("ok", f"{line}: only the first epoch reads from the disk", details)
    fix = "smaller copies may fit: `feedline cache plan` recommends sizes"
    return CheckResult("note", f"{line}: each epoch reads from the disk", details, fix)
