"""Disk of the data: its kind, its read rate, and if memory holds the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from feedline.machine import Disk, DiskKind, find_disk
from feedline.profile.doctor.check import CheckResult
from feedline.profile.doctor.data import DataFolder
from feedline.profile.doctor.read_rate import ReadRate, measure_read_rate
from feedline.text import as_bytes, plural

__all__ = ["DECODED_BYTES_PER_S", "check_disk"]

_READ_S = 0.4
_MIN_BYTES = 4_000_000
"""A shorter read, of all there was, is too noisy to report a fault."""

DECODED_BYTES_PER_S = 92e6
"""JPEG bytes that one core decodes, crops and resizes per second: 837 photographs of 110 KB
(README, `feedline bench`). A disk that delivers less than that for each core keeps them waiting."""

_CLEARLY = 0.5  # margin, as decoding varies with the images, and a short read varies, too

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


def check_disk(
    folder: str,
    data: DataFolder,
    *,
    cacheable_bytes: int | None,
    workers: int,
    root: Path = Path("/"),
) -> Iterator[CheckResult]:
    """Run the checks "disk", "read-rate" and "page-cache".

    Args:
        folder: of the data.
        data: its contents.
        cacheable_bytes: limit of the page cache; None if unknown.
        workers: number of parallel readers.
        root: folder that contains /proc and /sys.
    """
    disk = find_disk(folder, root)
    yield _disk(disk)
    fits = True if disk.kind == "memory" else _fits(data, cacheable_bytes)
    rate = measure_read_rate(data.sample, readers=max(1, workers), seconds=_READ_S)
    if rate is not None and disk.kind == "memory":
        rate = replace(rate, read_from="memory")
    yield _read(data, rate, workers, fits)
    if disk.kind == "memory":
        yield CheckResult(
            id="page-cache",
            status="ok",
            summary="the data are in memory already",
            details=_cache_details(data, cacheable_bytes, fits),
        )
    else:
        yield _page_cache(data, cacheable_bytes, fits)


def _disk(disk: Disk) -> CheckResult:
    details = asdict(disk)
    if disk.kind == "unknown" and not disk.file_system:
        return CheckResult(
            id="disk", status="unknown", summary="this machine does not report it", details=details
        )
    line = f"{disk.file_system} at {disk.mount_point}"
    line += f" ({disk.device})" if disk.device else f" ({disk.source})" if disk.source else ""
    local = disk.kind in ("nvme", "ssd")
    status = "ok" if local else "unknown" if disk.kind == "unknown" else "note"
    return CheckResult(
        id="disk",
        status=status,  # type: ignore[arg-type]
        summary=f"{line}, {_KINDS[disk.kind]}",
        details=details,
    )


def _fits(data: DataFolder, cacheable_bytes: int | None) -> bool | None:
    """Return True if memory holds all data of an epoch; None if unknown."""
    if data.bytes is None or cacheable_bytes is None:
        return None
    if data.bytes > cacheable_bytes:
        return False
    return None if data.at_least else True


def _read(data: DataFolder, rate: ReadRate | None, workers: int, fits: bool | None) -> CheckResult:
    if rate is None:
        return CheckResult(
            id="read-rate", status="unknown", summary="there is no file that can be read"
        )
    details = {
        "bytes_per_s": round(rate.bytes_per_s),
        "files_per_s": None if rate.files_per_s is None else round(rate.files_per_s, 1),
        "bytes": rate.bytes,
        "files": rate.files,
        "seconds": round(rate.seconds, 4),
        "readers": rate.readers,
        "read_from": rate.read_from,
        "cores_decode_bytes_per_s": round(workers * DECODED_BYTES_PER_S),
    }
    line = f"{as_bytes(rate.bytes_per_s)}/s"
    if rate.files_per_s is not None:
        line += f", {rate.files_per_s:,.0f} {data.things} a second,"
    line += f" with {plural(rate.readers, 'reader')}"
    line += (
        f" ({as_bytes(rate.bytes)} in {rate.seconds:.2f} s), "
        + {
            "disk": "from the disk",
            "memory": "from memory",
            "unknown": "maybe from memory (this file system does not report it)",
        }[rate.read_from]
    )
    little = rate.bytes < _MIN_BYTES and rate.seconds < _READ_S / 2
    if little or rate.read_from != "disk":
        line += "; too little to rate the disk" if little else ""
        return CheckResult(id="read-rate", status="note", summary=line, details=details)
    wanted = workers * DECODED_BYTES_PER_S
    if rate.bytes_per_s >= wanted:
        return CheckResult(id="read-rate", status="ok", summary=line, details=details)
    line += f"; {plural(workers, 'core')} decode about {as_bytes(wanted)}/s"
    if fits or rate.bytes_per_s >= _CLEARLY * wanted:
        waits = "the first epoch may wait for it" if fits else "training may sometimes wait for it"
        return CheckResult(
            id="read-rate", status="note", summary=f"{line}, so {waits}", details=details
        )
    return CheckResult(
        id="read-rate",
        status="warn",
        summary=f"{line}, so training waits for it"
        + ("" if fits is False else ", unless memory holds the data"),
        details=details,
        fix="copy the data to a local SSD, or make smaller copies: `feedline cache plan` "
        "recommends sizes",
    )


def _page_cache(data: DataFolder, cacheable_bytes: int | None, fits: bool | None) -> CheckResult:
    about = "more than " if data.at_least else ""
    details = _cache_details(data, cacheable_bytes, fits)
    known = data.bytes is not None and cacheable_bytes is not None
    line = "" if not known else (
        f"memory can hold {as_bytes(cacheable_bytes or 0)} of files; the data have {about}"
        f"{as_bytes(data.bytes or 0)}"
    )  # fmt: skip
    if fits is None:
        return CheckResult(
            id="page-cache",
            status="unknown",
            summary=line or "the size of the data is unknown",
            details=details,
        )
    if fits:
        return CheckResult(
            id="page-cache",
            status="ok",
            summary=f"{line}: only the first epoch reads from the disk",
            details=details,
        )
    return CheckResult(
        id="page-cache",
        status="note",
        summary=f"{line}: each epoch reads from the disk",
        details=details,
        fix="smaller copies may fit: `feedline cache plan` recommends sizes",
    )


def _cache_details(
    data: DataFolder, cacheable_bytes: int | None, fits: bool | None
) -> dict[str, object]:
    return {
        "data_bytes": data.bytes,
        "data_is_more": data.at_least,
        "page_cache_may_hold_bytes": cacheable_bytes,
        "fits": fits,
    }
