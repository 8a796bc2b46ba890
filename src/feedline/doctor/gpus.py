"""GPUs of this machine, found without torch: by files of the kernel, and by NVML if installed.

Relies on: /sys/bus/pci and /proc/driver/nvidia of Linux; nvidia-ml-py, which is optional.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from feedline.doctor.check import read_text

__all__ = ["Gpu", "Gpus", "PcieLink", "find_gpus", "read_link"]

_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAYS = ("0x0300", "0x0302", "0x0380", "0x1200")  # display controllers and accelerators
_NO_DRIVER, _NO_LIBRARY = 9, 12  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")


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
    version = _VERSION.search(read_text(module / "version"))
    found = Gpus(
        nvidia=tuple(_by_kernel(module / "gpus")),
        driver=version[1] if version else None,
        nvidia_cards=vendors.count(_NVIDIA),
        amd_cards=vendors.count(_AMD),
        amd_driver=(root / "sys/module/amdgpu").exists(),
    )
    if importlib.util.find_spec("pynvml") is None:
        return found
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
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
    lanes, most = (read_text(folder / f"{which}_link_width") for which in ("current", "max"))
    if not (address and lanes.isdecimal() and most.isdecimal() and 0 < int(lanes) <= 32):
        return None
    return PcieLink(lanes=int(lanes), most_lanes=int(most))


def _vendors_of_displays(devices: Path) -> Iterator[str]:
    for folder in _folders(devices):
        if read_text(folder / "class")[:6] in _DISPLAYS:
            yield read_text(folder / "vendor")


def _by_kernel(gpus: Path) -> Iterator[Gpu]:
    """Yield the GPUs listed in the driver's files, with names and addresses."""
    for folder in _folders(gpus):
        lines = read_text(folder / "information").splitlines()
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
