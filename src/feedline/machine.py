"""This machine: processor, memory, libraries, disks, GPUs and the page cache.

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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from feedline.system import core_limits, memory_limits

__all__ = [
    "DeviceWatch",
    "Disk",
    "DiskKind",
    "Gpu",
    "Gpus",
    "Machine",
    "PcieLink",
    "can_drop_pages",
    "cpu_model",
    "device_name",
    "drop_pages",
    "environment",
    "find_disk",
    "find_gpus",
    "package_version",
    "read_link",
    "stays_in_memory",
    "this_machine",
]

_LIBRARIES = ("feedline", "torch", "torchvision", "numpy", "pillow")
_PROBES = 3


def _read_text(path: Path) -> str:
    """Read a file of the kernel; "" if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


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
    cores: int
    usable_cores: int
    quota_cores: float | None
    memory_bytes: int
    gpu: str | None
    platform: str
    versions: dict[str, str | None]
    shared_by: int = 1


def this_machine() -> Machine:
    """Describe the machine in its current state."""
    limits, memory = core_limits(), memory_limits()
    return Machine(
        host=socket.gethostname(),
        cpu=cpu_model(),
        cores=limits.machine,
        usable_cores=limits.usable,
        quota_cores=None if math.isinf(limits.quota) else limits.quota,
        memory_bytes=memory.machine if memory.limit is None else memory.limit,
        gpu=device_name(),
        platform=platform.platform(),
        versions=_versions(),
        shared_by=limits.processes,
    )


@functools.cache
def _versions() -> dict[str, str | None]:
    return {
        "python": platform.python_version(),
        **{name: package_version(name) for name in _LIBRARIES},
    }


def device_name() -> str | None:
    """Name of the device in use; None if CUDA is not initialised."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return str(torch.cuda.get_device_name())


def cpu_model(root: Path = Path("/")) -> str:
    """Model name of the processor, if the machine reports one."""
    lines = _read_text(root / "proc/cpuinfo").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def package_version(package: str) -> str | None:
    """Version of an installed package, which is not imported; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(*packages: str) -> dict[str, Any]:
    """Machine and versions on which a figure was measured, JSON-able.

    `cores_usable` respects affinity, quota and batch system.

    Args:
        packages: packages whose versions count, besides feedline, Python and torch.
    """
    found = this_machine()
    torch = sys.modules.get("torch")
    versions = {name: package_version(name) for name in ("feedline", "torch", *packages)}
    if torch is not None:
        versions["torch"] = str(torch.__version__)  # the metadata may lack its "+cu130"
    return {
        "machine": {
            "cpu": found.cpu,
            "cores_usable": found.usable_cores,
            "cores_logical": found.cores,
            "memory_bytes": found.memory_bytes,
            "platform": found.platform,
        },
        "versions": {"python": platform.python_version(), **versions},
    }


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
    model = _read_text(folder / "device/model")
    if folder.name.startswith(("vd", "xvd")) or _VIRTUAL_MODEL.search(model):
        return "virtual"  # its "rotational" flag is the hypervisor's guess
    if folder.name.startswith("nvme"):
        return "nvme"
    turns = _read_text(folder / "queue/rotational")
    if folder.name.startswith(("sd", "hd", "mmcblk", "dm-", "md", "loop")) and turns in "01":
        return {"0": "ssd", "1": "hdd"}.get(turns, "unknown")  # type: ignore[return-value]
    return "unknown"


def _unescape(field: bytes) -> bytes:
    """Decode a field of mountinfo, in which blanks are octal escapes."""
    return _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 255]), field)


_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAYS = ("0x0300", "0x0302", "0x0380", "0x1200")  # display controllers and accelerators
_NO_DRIVER, _NO_LIBRARY = 9, 12  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
_DRIVER_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """NVIDIA GPU that its driver reports.

    Args:
        name: of the model.
        address: on the PCI bus, as "0000:65:00.0"; "" if unknown.
        memory_bytes, free_bytes: None if NVML does not report them.
    """

    name: str
    address: str = ""
    memory_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """GPUs of this machine.

    Args:
        nvidia: GPUs that the driver reports.
        driver: version of the NVIDIA driver; None without one.
        cuda: newest CUDA version that the driver supports, from NVML; None if unknown.
        nvidia_cards, amd_cards: number of cards on the PCI bus, with a driver or without.
        amd_driver: AMD's driver is loaded.
        nvml: NVML answered.
        problem: NVML's error, if there is a driver; otherwise "".

    `amd` is True if there is an AMD GPU with its driver, `any` if there is a usable GPU.
    """

    nvidia: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: tuple[int, int] | None = None
    nvidia_cards: int = 0
    amd_cards: int = 0
    amd_driver: bool = False
    nvml: bool = False
    problem: str = ""

    @property
    def amd(self) -> bool:  # noqa: D102
        return self.amd_cards > 0 and self.amd_driver

    @property
    def any(self) -> bool:  # noqa: D102
        return bool(self.nvidia) or self.amd


@dataclass(frozen=True, kw_only=True)
class PcieLink:
    """Lanes of a device's PCI connection, current and maximum."""

    lanes: int
    most_lanes: int


def find_gpus(root: Path = Path("/")) -> Gpus:
    """Find the GPUs of this machine. NVML may be slow or hang if a GPU is broken.

    Args:
        root: folder that contains /proc and /sys.
    """
    vendors = list(_vendors_of_displays(root / "sys/bus/pci/devices"))
    module = root / "proc/driver/nvidia"
    version = _DRIVER_VERSION.search(_read_text(module / "version"))
    found = Gpus(
        nvidia=tuple(_by_kernel(module / "gpus")),
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
        if code == _NO_LIBRARY or (code == _NO_DRIVER and not found.driver):
            return found
        return replace(found, problem=f"NVML: {error}")
    try:
        return replace(
            found,
            nvidia=tuple(_by_nvml(nvml)),
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda=_cuda(nvml.nvmlSystemGetCudaDriverVersion()),
            nvml=True,
        )
    except nvml.NVMLError as error:
        return replace(found, problem=f"NVML: {error}")
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def read_link(address: str, root: Path = Path("/")) -> PcieLink | None:
    """Read a device's PCI connection; None if unknown, as in virtual machines.

    Args:
        address: of the device.
        root: folder that contains /sys.
    """
    folder = root / "sys/bus/pci/devices" / address
    lanes, most = (_read_text(folder / f"{which}_link_width") for which in ("current", "max"))
    if not (address and lanes.isdecimal() and most.isdecimal() and 0 < int(lanes) <= 32):
        return None
    return PcieLink(lanes=int(lanes), most_lanes=int(most))


def _open_nvml() -> Any:
    """Start NVIDIA's management library, and return its module.

    Raises:
        ImportError: it is not installed.
        Exception: it does not start; of its own class.
    """
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return nvml


def _vendors_of_displays(devices: Path) -> Iterator[str]:
    for folder in _folders(devices):
        if _read_text(folder / "class")[:6] in _DISPLAYS:
            yield _read_text(folder / "vendor")


def _by_kernel(gpus: Path) -> Iterator[Gpu]:
    """Yield the GPUs listed in the driver's files, with names and addresses."""
    for folder in _folders(gpus):
        lines = _read_text(folder / "information").splitlines()
        items = {
            name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        yield Gpu(name=items.get("Model", "a GPU"), address=folder.name.lower())


def _by_nvml(nvml: Any) -> Iterator[Gpu]:
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        memory = None
        with contextlib.suppress(nvml.NVMLError):  # a GPU that shares the host's memory has none
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        yield Gpu(
            name=_text(nvml.nvmlDeviceGetName(handle)),
            address=_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
            memory_bytes=None if memory is None else int(memory.total),
            free_bytes=None if memory is None else int(memory.free),
        )


def _address(bus_id: str) -> str:
    """Convert NVML's address to the kernel's form: a domain of four digits, lower case."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _cuda(version: int) -> tuple[int, int]:
    return version // 1000, version % 1000 // 10


def _text(given: str | bytes) -> str:
    return given.decode(errors="replace") if isinstance(given, bytes) else given


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


class DeviceWatch:
    """Samples the utilisation of the current device."""

    def __init__(self) -> None:
        self._library: Any = None
        self._handle: Any = None
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
        if self._refused:
            return
        try:
            if self._handle is None and not self._open():
                return
            self.latest = self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
            self._busy += self.latest
            self._samples += 1
        except Exception:  # the library's own class, which is not imported if it is missing
            self._refused = True

    def _open(self) -> bool:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        self._library = _open_nvml()
        # NVML's numbers ignore CUDA_VISIBLE_DEVICES; the UUID is always the same.
        uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
        by_uuid = self._library.nvmlDeviceGetHandleByUUID
        self._handle = by_uuid(f"GPU-{uuid}") if uuid is not None else self._by_number(torch)
        return True

    def _by_number(self, torch: Any) -> Any:
        return self._library.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())


def can_drop_pages() -> bool:
    """Return True if this system has the calls of `drop_pages` and `stays_in_memory`."""
    return hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")


def drop_pages(path: str | bytes, offset: int = 0, length: int = 0) -> None:
    """Ask the kernel to drop a file's pages from the page cache, which it may decline.

    Data not yet on the disk is written first, as it cannot be dropped.

    Args:
        path: of the file.
        offset, length: part of the file, in bytes; a length of 0 extends to the end.

    Raises:
        OSError: the file cannot be opened.
    """
    with open(path, "rb", buffering=0) as file:
        with contextlib.suppress(OSError):
            os.fsync(file)
        os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_DONTNEED)


def stays_in_memory(path: str | bytes, offset: int = 0, length: int = 0) -> bool | None:
    """Drop a part of a file, and return True if its first byte is in memory nevertheless; None if
    its file system does not support this.

    A probe of a missing page also starts to read it, and a fast disk can deliver it before the
    probe returns: 7 of 1000 probes of a virtual disk. So the page must be found by several probes,
    each after dropping it again. On a busy machine, 3 of 1000 files of a disk pass them all: ask
    for several files.

    Raises:
        OSError: the file cannot be opened.
    """
    with open(path, "rb", buffering=0) as file:
        for _ in range(_PROBES):
            os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_DONTNEED)
            try:
                os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return None
    return True
