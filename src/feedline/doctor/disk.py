"""On what the data lie, how fast they are read there, and whether memory holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from rich.filesize import decimal

from feedline.doctor.check import Check
from feedline.doctor.data import Data
from feedline.doctor.mounts import Disk, DiskKind, disk_of
from feedline.doctor.read_rate import ReadRate, read_rate

__all__ = ["DECODED_BYTES_PER_S", "look_at_disk"]

_READ_S = 0.4
_LEAST_BYTES = 4_000_000
"""Reading less, where that is all there was, takes a moment in which anything may happen: no fault
is found from it."""

DECODED_BYTES_PER_S = 92e6
"""JPEG bytes that one core decodes, crops and resizes in a second: 837 photographs of 110 KB
(README, `feedline bench`). A disk that gives the cores less than that keeps them waiting."""

_CLEARLY = (
    0.5  # what a core decodes varies with the images, and what a moment reads with the moment
)

_KINDS: dict[DiskKind, str] = {
    "nvme": "an NVMe disk of this machine",
    "ssd": "an SSD of this machine",
    "hdd": "a turning disk of this machine: each file costs it a seek",
    "virtual": "a virtual machine's disk, behind which may be anything",
    "network": "another machine, or a program: a file system over the network or FUSE",
    "host": "a folder of this virtual machine's host",
    "memory": "memory: what it holds is missing elsewhere",
    "layers": "a container's own layers, slower than a folder of the host's that is mounted in it",
    "unknown": "a disk of a kind that the machine does not say",
}


def look_at_disk(
    folder: str,
    data: Data,
    *,
    cacheable_bytes: int | None,
    workers: int,
    root: Path = Path("/"),
) -> Iterator[Check]:
    """The checks "disk", "read-rate" and "page-cache".

    Args:
        folder: of the data.
        data: what it holds.
        cacheable_bytes: what the page cache may keep; None where that is not known.
        workers: how many will read at a time.
        root: the folder that holds /proc and /sys.
    """
    disk = disk_of(folder, root)
    yield _disk(disk)
    fits = True if disk.kind == "memory" else _fits(data, cacheable_bytes)
    rate = read_rate(data.sample, readers=max(1, workers), seconds=_READ_S)
    if rate is not None and disk.kind == "memory":
        rate = replace(rate, read_from="memory")
    yield _read(data, rate, workers, fits)
    if disk.kind == "memory":
        yield Check(
            id="page-cache",
            status="ok",
            summary="the data lie in memory already",
            details=_held(data, cacheable_bytes, fits),
        )
    else:
        yield _page_cache(data, cacheable_bytes, fits)


def _disk(disk: Disk) -> Check:
    details = asdict(disk)
    if disk.kind == "unknown" and not disk.file_system:
        return Check(
            id="disk", status="unknown", summary="this machine does not say", details=details
        )
    line = f"{disk.file_system} at {disk.mount_point}"
    line += f" ({disk.device})" if disk.device else f" ({disk.source})" if disk.source else ""
    local = disk.kind in ("nvme", "ssd")
    status = "ok" if local else "unknown" if disk.kind == "unknown" else "note"
    return Check(
        id="disk",
        status=status,  # type: ignore[arg-type]
        summary=f"{line}, {_KINDS[disk.kind]}",
        details=details,
    )


def _fits(data: Data, cacheable_bytes: int | None) -> bool | None:
    """Whether memory holds all that an epoch reads; None where that is not known."""
    if data.bytes is None or cacheable_bytes is None:
        return None
    if data.bytes > cacheable_bytes:
        return False
    return None if data.at_least else True


def _read(data: Data, rate: ReadRate | None, workers: int, fits: bool | None) -> Check:
    if rate is None:
        return Check(
            id="read-rate", status="unknown", summary="there is nothing that could be read"
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
    line = f"{decimal(round(rate.bytes_per_s))}/s"
    if rate.files_per_s is not None:
        line += f", {rate.files_per_s:,.0f} {data.things} a second,"
    line += f" by {rate.readers} reader{'s' * (rate.readers != 1)} at a time"
    line += (
        f" ({decimal(rate.bytes)} in {rate.seconds:.2f} s), "
        + {
            "disk": "from the disk",
            "memory": "from memory",
            "unknown": "perhaps from memory, which this file system does not say",
        }[rate.read_from]
    )
    little = rate.bytes < _LEAST_BYTES and rate.seconds < _READ_S / 2
    if little or rate.read_from != "disk":
        line += "; too little to judge the disk by" if little else ""
        return Check(id="read-rate", status="note", summary=line, details=details)
    wanted = workers * DECODED_BYTES_PER_S
    if rate.bytes_per_s >= wanted:
        return Check(id="read-rate", status="ok", summary=line, details=details)
    line += f"; {workers} core{'s' * (workers != 1)} decode about {decimal(round(wanted))}/s"
    if fits or rate.bytes_per_s >= _CLEARLY * wanted:
        waits = "the first epoch may wait for it" if fits else "training may wait for it at times"
        return Check(id="read-rate", status="note", summary=f"{line}, so {waits}", details=details)
    return Check(
        id="read-rate",
        status="warn",
        summary=f"{line}, so training waits for it"
        + ("" if fits is False else ", unless memory holds the data"),
        details=details,
        fix="copy the data to a local SSD, or make smaller copies: `feedline cache plan` says "
        "which",
    )


def _page_cache(data: Data, cacheable_bytes: int | None, fits: bool | None) -> Check:
    about = "more than " if data.at_least else ""
    details = _held(data, cacheable_bytes, fits)
    known = data.bytes is not None and cacheable_bytes is not None
    line = "" if not known else (
        f"memory may hold {decimal(cacheable_bytes or 0)} of files; the data have {about}"
        f"{decimal(data.bytes or 0)}"
    )  # fmt: skip
    if fits is None:
        return Check(
            id="page-cache",
            status="unknown",
            summary=line or "how much there is to hold is not known",
            details=details,
        )
    if fits:
        return Check(
            id="page-cache",
            status="ok",
            summary=f"{line}: only the first epoch reads the disk",
            details=details,
        )
    return Check(
        id="page-cache",
        status="note",
        summary=f"{line}: each epoch reads the disk",
        details=details,
        fix="smaller copies may fit: `feedline cache plan` says which",
    )


def _held(data: Data, cacheable_bytes: int | None, fits: bool | None) -> dict[str, object]:
    return {
        "data_bytes": data.bytes,
        "data_is_more": data.at_least,
        "page_cache_may_hold_bytes": cacheable_bytes,
        "fits": fits,
    }
