"""File system of a folder, and the kind of its disk.

Relies on: /proc/self/mountinfo (proc(5)) and /sys/dev/block of Linux.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from feedline.doctor.check import read_text

__all__ = ["Disk", "DiskKind", "find_disk"]

DiskKind: TypeAlias = Literal[
    "nvme", "ssd", "hdd", "virtual", "network", "host", "memory", "layers", "unknown"
]
"""virtual: a virtual machine's disk, the physical disk is unknown. host: a folder shared by
the host of a virtual machine. layers: of a container, whose disk it does not see."""

_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|lustre|gpfs|mmfs|beegfs|ceph|glusterfs|afs|wekafs|pvfs2|orangefs|panfs"
    r"|davfs|ncpfs|coda|quobyte|fuse|fuse\..+"
)
_HOST = frozenset(("9p", "virtiofs", "vboxsf", "vmhgfs", "drvfs", "prl_fs"))
_MEMORY = frozenset(("tmpfs", "ramfs", "hugetlbfs"))
_LAYERS = frozenset(("overlay", "overlayfs", "aufs"))
_VIRTUAL_MODEL = re.compile(
    r"QEMU|VMware|VBOX|Virtual|Msft|PersistentDisk|nvme_card-pd|Elastic Block Store", re.IGNORECASE
)
_ESCAPED = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class Disk:
    """File system and disk of a folder.

    Args:
        kind: see `DiskKind`.
        file_system: its type, e.g. "ext4" or "fuse.sshfs"; "" if unknown.
        mount_point: path of the mount.
        source: mounted source: a device, "server:/folder", or a name.
        device: kernel name of the disk, e.g. "nvme0n1"; "" if it has none.
    """

    kind: DiskKind
    file_system: str = ""
    mount_point: str = ""
    source: str = ""
    device: str = ""


def find_disk(folder: str | os.PathLike[str], root: Path = Path("/")) -> Disk:
    """Find the disk of a folder; of kind "unknown" if the machine does not report it.

    Args:
        folder: an existing folder.
        root: folder that contains /proc and /sys.
    """
    try:
        table = (root / "proc/self/mountinfo").read_bytes()
    except OSError:
        return Disk(kind="unknown")
    path = os.fsencode(os.path.realpath(folder))
    best: tuple[int, list[bytes], list[bytes]] | None = None
    for line in table.splitlines():
        before, found, after = line.partition(b" - ")
        fields, others = before.split(), after.split()
        if not found or len(fields) < 5 or not others:
            continue
        point = _unescape(fields[4])
        within = path == point or path.startswith(point.rstrip(b"/") + b"/")
        # The later of two mounts on one point hides the earlier.
        if within and (best is None or len(point) >= best[0]):
            best = len(point), fields, others
    if best is None:
        return Disk(kind="unknown")
    _, fields, others = best
    file_system = os.fsdecode(others[0])
    source = os.fsdecode(_unescape(others[1])) if len(others) > 1 else ""
    kind, device = _by_type(file_system), ""
    if kind == "unknown":
        kind, device = _by_device(os.fsdecode(fields[2]), source, root)
    return Disk(
        kind=kind,
        file_system=file_system,
        mount_point=os.fsdecode(_unescape(fields[4])),
        source=source,
        device=device,
    )


def _by_type(file_system: str) -> DiskKind:
    # "fuseblk" is a local disk with a foreign format; most other FUSE file systems are remote.
    if _NETWORK.fullmatch(file_system):
        return "network"
    if file_system in _HOST:
        return "host"
    if file_system in _MEMORY:
        return "memory"
    return "layers" if file_system in _LAYERS else "unknown"


def _by_device(number: str, source: str, root: Path) -> tuple[DiskKind, str]:
    """Return kind and name of a block device "MAJOR:MINOR"."""
    devices = root / "sys/dev/block"
    if number.startswith("0:"):  # btrfs and others use their own numbers: use the source
        try:
            status = os.stat(source)
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        except OSError:
            return "unknown", ""
    try:
        folder = (devices / number).resolve(strict=True)
    except (OSError, RuntimeError):
        return "unknown", ""
    if (folder / "partition").exists():
        folder = folder.parent
    return _kind_of(folder), folder.name


def _kind_of(folder: Path, depth: int = 0) -> DiskKind:
    """Return the kind of a disk from its folder in /sys; the slowest of several combined disks."""
    below = folder / "slaves"  # disks of a volume manager, a RAID or an encryption
    try:
        parts = [part.resolve() for part in below.iterdir()] if depth < 8 else []
    except OSError:
        parts = []
    if parts:
        whole = [part.parent if (part / "partition").exists() else part for part in parts]
        kinds = {_kind_of(part, depth + 1) for part in whole}
        order: tuple[DiskKind, ...] = ("hdd", "unknown", "virtual", "ssd", "nvme")
        return next((kind for kind in order if kind in kinds), "unknown")
    model = read_text(folder / "device/model")
    if folder.name.startswith(("vd", "xvd")) or _VIRTUAL_MODEL.search(model):
        return "virtual"  # its "rotational" flag is the hypervisor's guess
    if folder.name.startswith("nvme"):
        return "nvme"
    turns = read_text(folder / "queue/rotational")
    if folder.name.startswith(("sd", "hd", "mmcblk", "dm-", "md", "loop")) and turns in "01":
        return {"0": "ssd", "1": "hdd"}.get(turns, "unknown")  # type: ignore[return-value]
    return "unknown"


def _unescape(field: bytes) -> bytes:
    """Decode a field of mountinfo, in which blanks are octal escapes."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 255]), field)
