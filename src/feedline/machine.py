"""This machine: processor, memory, libraries, other programs, disks, GPUs and the page cache.

Guarantees: torch is not imported and no device is initialised; NVIDIA's management library (NVML)
is used only if it is installed. Unknown values are None, or named so. The limits that apply to this
process are in `system`.
Relies on: /proc, /sys/bus/pci and /sys/dev/block of Linux; nvidia-ml-py, which is optional; for the
page cache posix_fadvise(DONTNEED), which drops clean pages that are not mapped, and
preadv(RWF_NOWAIT), which needs no rights beyond reading.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import math
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import psutil
from msgspec import Meta

from feedline.system import core_limits, memory_limits, read_text, usable_cores

_ROOT = Path("/")
_LIBRARIES = ("feedline", "torch", "torchvision", "numpy", "pillow")


_Cores = Annotated[int, Meta(le=1 << 16)]  # in a file that is read


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Machine of a run. Only runs on machines that are equal here can be compared.

    Args:
        host: host name.
        cpu: name of the processor.
        cores: number of logical cores.
        usable_cores: number of cores this process could use.
        quota_cores: CPU quota of the cgroup, in cores; None without one.
        memory_bytes: of the machine, or the limit of the cgroup.
        gpu: name of the device; None without one.
        platform: operating system.
        versions: of feedline, Python, torch and other libraries.
        shared_by: training processes of this machine that share the cores.
    """

    host: str
    cpu: str
    cores: _Cores
    usable_cores: _Cores
    quota_cores: float | None
    memory_bytes: int
    gpu: str | None
    platform: str
    versions: dict[str, str | None]
    shared_by: int = 1


def this_machine(*packages: str) -> Machine:
    """Describe the machine in its current state, with the versions of these packages, too."""
    limits, memory = core_limits(), memory_limits()
    versions = {"python": platform.python_version(), **_library_versions(*packages)}
    if torch := sys.modules.get("torch"):
        versions["torch"] = str(torch.__version__)  # the metadata may lack its "+cu130"
    return Machine(
        host=socket.gethostname(),
        cpu=cpu_model(),
        cores=limits.machine,
        usable_cores=limits.usable,
        quota_cores=None if math.isinf(limits.quota) else limits.quota,
        memory_bytes=memory.machine if memory.limit is None else memory.limit,
        gpu=device_name(),
        platform=platform.platform(),
        versions=versions,
        shared_by=limits.processes,
    )


@functools.cache
def _library_versions(*packages: str) -> dict[str, str | None]:
    return {name: package_version(name) for name in (*_LIBRARIES, *packages)}


def device_name() -> str | None:
    """Name of the device in use; None if CUDA is not initialised."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return str(torch.cuda.get_device_name())


def cpu_model(root: Path = _ROOT) -> str:
    """Model name of the processor, if the machine reports one."""
    found = re.search(r"^model name\s*:\s*(\S.*)", read_text(root / "proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def package_version(package: str) -> str | None:
    """Version of an installed package, which is not imported; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(*packages: str) -> dict[str, Any]:
    """Machine and versions on which a figure was measured, JSON-able; see `this_machine`."""
    machine = asdict(this_machine(*packages))
    return {"versions": machine.pop("versions"), "machine": machine}


class OwnCpuTime:
    """CPU time of this process and its current descendants since construction."""

    def __init__(self) -> None:
        head = psutil.Process()
        self._family = [head, *head.children(recursive=True)]
        self._start_s = self._total_s()

    def seconds(self) -> float:
        """User and system time, in seconds."""
        return max(0.0, self._total_s() - self._start_s)

    def _total_s(self) -> float:
        total_s = 0.0
        for process in self._family:
            with contextlib.suppress(psutil.Error):  # it has ended
                times = process.cpu_times()
                total_s += times.user + times.system
        return total_s


class OtherPrograms:
    """CPU use of other programs since construction, from the system's clocks and the own ones.

    The own workers are started before it.

    Args:
        cores: number of cores this process may use.
    """

    def __init__(self, cores: int | None = None) -> None:
        self._usable = usable_cores() if cores is None else cores
        self._own, self._start_s, self._idle_s = OwnCpuTime(), time.monotonic(), _idle_s()

    def cores(self) -> float:
        """Mean number of this process's usable cores that other programs used.

        If the process may not use all cores of the machine, others may use the rest.
        """
        seconds = max(1e-9, time.monotonic() - self._start_s)
        free = (_idle_s() - self._idle_s + self._own.seconds()) / seconds
        return min(float(self._usable), max(0.0, self._usable - free))


def _idle_s() -> float:
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


DiskKind: TypeAlias = Literal[
    "nvme", "ssd", "hdd", "virtual", "network", "host", "memory", "layers", "unknown"
]
"""virtual: a virtual machine's disk, the physical disk is unknown. host: a folder shared by
the host of a virtual machine. layers: of a container, whose disk it does not see."""

# "fuseblk" is a local disk with a foreign format; most other FUSE file systems are remote.
_BY_FILE_SYSTEM: tuple[tuple[DiskKind, str], ...] = (
    (
        "network",
        r"nfs4?|cifs|smb3|smbfs|lustre|gpfs|mmfs|beegfs|ceph|glusterfs|afs|wekafs|pvfs2|orangefs"
        r"|panfs|davfs|ncpfs|coda|quobyte|fuse|fuse\..+",
    ),
    ("host", "9p|virtiofs|vboxsf|vmhgfs|drvfs|prl_fs"),
    ("memory", "tmpfs|ramfs|hugetlbfs"),
    ("layers", "overlay|overlayfs|aufs"),
)
_VIRTUAL_MODEL = re.compile(
    r"QEMU|VMware|VBOX|Virtual|Msft|PersistentDisk|nvme_card-pd|Elastic Block Store", re.IGNORECASE
)
_SLOWEST_FIRST: tuple[DiskKind, ...] = ("hdd", "unknown", "virtual", "ssd", "nvme")
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


def find_disk(folder: str | os.PathLike[str], root: Path = _ROOT) -> Disk:
    """Find the disk of a folder; of kind "unknown" if the machine does not report it.

    Args:
        folder: an existing folder.
        root: folder that contains /proc and /sys.
    """
    path, best, length = os.fsencode(os.path.realpath(folder)), Disk(kind="unknown"), 0
    number = ""
    for line in os.fsencode(read_text(root / "proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(b" - ")
        fields, (file_system, source, *_) = before.split(), [*after.split(), b"", b""]
        if len(fields) < 5 or not file_system:
            continue
        point = _unescape(fields[4])
        within = path == point or path.startswith(point.rstrip(b"/") + b"/")
        if within and len(point) >= length:  # of two mounts on one point the later hides the other
            length, number = len(point), os.fsdecode(fields[2])
            best = Disk(
                kind="unknown",
                file_system=os.fsdecode(file_system),
                mount_point=os.fsdecode(point),
                source=os.fsdecode(_unescape(source)),
            )
    for kind, names in _BY_FILE_SYSTEM:
        if re.fullmatch(names, best.file_system):
            return replace(best, kind=kind)
    block = _block_device(number, best.source, root)
    return best if block is None else replace(best, kind=_kind_of(block), device=block.name)


def _block_device(number: str, source: str, root: Path) -> Path | None:
    """Folder in /sys of the disk that contains a block device "MAJOR:MINOR"."""
    try:
        if number.startswith("0:"):  # btrfs and others use their own numbers: use the source
            status = os.stat(source)
            number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        return _whole_disk((root / "sys/dev/block" / (number or "-")).resolve(strict=True))
    except (OSError, RuntimeError):
        return None


def _whole_disk(folder: Path) -> Path:
    return folder.parent if (folder / "partition").exists() else folder


def _kind_of(folder: Path, depth: int = 0) -> DiskKind:
    """Return the kind of a disk from its folder in /sys; the slowest of several combined disks."""
    # Disks of a volume manager, a RAID or an encryption.
    if parts := _folders(folder / "slaves") if depth < 8 else []:
        kinds = {_kind_of(_whole_disk(part.resolve()), depth + 1) for part in parts}
        return min(kinds, key=_SLOWEST_FIRST.index)
    model = read_text(folder / "device/model")
    if folder.name.startswith(("vd", "xvd")) or _VIRTUAL_MODEL.search(model):
        return "virtual"  # its "rotational" flag is the hypervisor's guess
    if folder.name.startswith("nvme"):
        return "nvme"
    if not folder.name.startswith(("sd", "hd", "mmcblk", "dm-", "md", "loop")):
        return "unknown"
    kinds_by_flag: dict[str, DiskKind] = {"0": "ssd", "1": "hdd"}
    return kinds_by_flag.get(read_text(folder / "queue/rotational"), "unknown")


def _unescape(field: bytes) -> bytes:
    """Decode a field of mountinfo, in which blanks are octal escapes."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 255]), field)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAYS = ("0x0300", "0x0302", "0x0380", "0x1200")  # display controllers and accelerators
_NO_DRIVER, _NO_LIBRARY = 9, 12  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """NVIDIA GPU that its driver reports; None if a value is unknown.

    Args:
        name: of the model.
        address: on the PCI bus, as "0000:65:00.0"; "" if unknown.
        memory_bytes, free_bytes: from NVML.
        lanes, most_lanes: of its PCI connection, from NVML; unknown in virtual machines.
    """

    name: str
    address: str = ""
    memory_bytes: int | None = None
    free_bytes: int | None = None
    lanes: int | None = None
    most_lanes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """GPUs of this machine.

    Args:
        nvidia: GPUs that the driver reports.
        driver: version of the NVIDIA driver; None without one.
        cuda: newest CUDA version that the driver supports; None unless NVML answered.
        nvidia_cards, amd_cards: number of cards on the PCI bus, with a driver or without.
        amd_driver: AMD's driver is loaded.
        problem: NVML's error, if there is a driver; otherwise "".

    `any` is True if there is a usable GPU, `amd` if AMD's driver has one.
    """

    nvidia: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    nvidia_cards: int = 0
    amd_cards: int = 0
    amd_driver: bool = False
    problem: str = ""

    @property
    def amd(self) -> bool:  # noqa: D102
        return self.amd_cards > 0 and self.amd_driver

    @property
    def any(self) -> bool:  # noqa: D102
        return bool(self.nvidia) or self.amd


def find_gpus(root: Path = _ROOT) -> Gpus:
    """Find the GPUs of this machine. NVML may be slow or hang if a GPU is broken.

    Args:
        root: folder that contains /proc and /sys.
    """
    driver, cards = root / "proc/driver/nvidia", _folders(root / "sys/bus/pci/devices")
    displays = [card for card in cards if read_text(card / "class")[:6] in _DISPLAYS]
    vendors = [read_text(folder / "vendor") for folder in displays]
    version = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", read_text(driver / "version"))
    found = Gpus(
        nvidia=tuple(map(_gpu_of_kernel, _folders(driver / "gpus"))),
        driver=version[1] if version else None,
        nvidia_cards=vendors.count(_NVIDIA),
        amd_cards=vendors.count(_AMD),
        amd_driver=(root / "sys/module/amdgpu").exists(),
    )
    try:
        nvml = _open_nvml()
    except ImportError:
        return found
    except Exception as error:  # NVML's own class
        code = getattr(error, "value", None)
        # A container may lack the library of a working driver; without a driver NVML never answers.
        absent = code == _NO_LIBRARY or (code == _NO_DRIVER and not found.driver)
        return found if absent else replace(found, problem=f"NVML: {error}")
    try:
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        return replace(
            found,
            nvidia=tuple(_gpu_of_nvml(nvml, k) for k in range(nvml.nvmlDeviceGetCount())),
            driver=nvml.nvmlSystemGetDriverVersion(),
            cuda=(cuda // 1000, cuda % 1000 // 10),
        )
    except nvml.NVMLError as error:
        return replace(found, problem=f"NVML: {error}")
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _open_nvml() -> Any:
    """Start NVIDIA's management library, and return its module.

    Raises:
        ImportError: it is not installed.
        Exception: it does not start; of its own class.
    """
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return nvml


def _gpu_of_kernel(folder: Path) -> Gpu:
    model = re.search(r"^Model:\s*(\S.*)", read_text(folder / "information"), re.MULTILINE)
    return Gpu(name=model[1] if model else "a GPU", address=folder.name)


def _gpu_of_nvml(nvml: Any, number: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)

    def known(query: str) -> Any:
        with contextlib.suppress(nvml.NVMLError):  # a GPU that shares the host's memory has none
            return getattr(nvml, query)(handle)
        return None

    memory = known("nvmlDeviceGetMemoryInfo")
    return Gpu(
        name=nvml.nvmlDeviceGetName(handle),
        address=nvml.nvmlDeviceGetPciInfo(handle).busId,
        memory_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        lanes=known("nvmlDeviceGetCurrPcieLinkWidth"),
        most_lanes=known("nvmlDeviceGetMaxPcieLinkWidth"),
    )


class DeviceWatch:
    """Samples the utilisation of the current device, as its driver reports it to torch."""

    def __init__(self) -> None:
        self._refused = False
        self._samples = 0
        self._busy = 0.0
        self.latest: float | None = None

    @property
    def busy(self) -> float | None:
        """Mean of all samples, 0 to 1; None without samples."""
        return self._busy / self._samples if self._samples else None

    def update(self) -> None:
        """Take a sample."""
        torch = sys.modules.get("torch")
        if self._refused or torch is None or not torch.cuda.is_initialized():
            return
        try:
            self.latest = torch.cuda.utilization() / 100
            self._busy += self.latest
            self._samples += 1
        except Exception:  # the driver's library is missing, or the device is lost
            self._refused = True


ReadFrom: TypeAlias = Literal["disk", "memory", "unknown"]
"""Source of a file's bytes when it is read; unknown: the file system does not report it."""

_PROBED_FILES = 4
_PROBES = 3  # of one file


class FilePart(NamedTuple):
    """Part of a file, in bytes; a length of 0 extends to its end."""

    path: str | bytes
    offset: int = 0
    bytes: int = 0


def drop_from_memory(parts: Sequence[FilePart]) -> tuple[ReadFrom, Sequence[FilePart]]:
    """Drop parts of files from the page cache. Return the source of their next read, and the parts
    to read for a measurement of it: those not fetched again by checking the source.
    """
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return "unknown", parts
    for part in parts:
        with contextlib.suppress(OSError), open(part.path, "rb", buffering=0) as file:
            with contextlib.suppress(OSError):
                os.fsync(file)  # pages that are not on the disk yet cannot be dropped
            os.posix_fadvise(file.fileno(), part.offset, part.bytes, os.POSIX_FADV_DONTNEED)
    probed = min(_PROBED_FILES, len(parts) // 2)
    found: list[bool | None] = []
    for part in parts[:probed]:
        with contextlib.suppress(OSError):
            found.append(stays_in_memory(part))
    source: ReadFrom = "memory" if found and all(found) else "unknown"
    # A busy machine finds a few files of a disk in memory.
    return "disk" if found.count(False) > len(found) / 2 else source, parts[probed:]


def stays_in_memory(part: FilePart) -> bool | None:
    """Drop a part of a file, and return True if its first byte is in memory nevertheless; None if
    its file system does not support this.

    A probe of a missing page also starts to read it, and a fast disk can deliver it before the
    probe returns: 7 of 1000 probes of a virtual disk. So the page must be found by several probes,
    each after dropping it again. On a busy machine, 3 of 1000 files of a disk pass them all: ask
    for several files.

    Raises:
        OSError: the file cannot be opened.
    """
    with open(part.path, "rb", buffering=0) as file:
        for _ in range(_PROBES):
            os.posix_fadvise(file.fileno(), part.offset, part.bytes, os.POSIX_FADV_DONTNEED)
            try:
                os.preadv(file.fileno(), [bytearray(1)], part.offset, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return None
    return True
