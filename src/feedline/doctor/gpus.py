"""Which GPUs are here, without torch: by files of the kernel, and by NVML where it is installed.

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

__all__ = ["Gpu", "Gpus", "Link", "gpus_here", "link_of"]

_NVIDIA, _AMD = "0x10de", "0x1002"
_DISPLAYS = ("0x0300", "0x0302", "0x0380", "0x1200")  # display controllers and accelerators
_NO_DRIVER, _NO_LIBRARY = 9, 12  # NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_LIBRARY_NOT_FOUND
_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU of NVIDIA's that its driver shows.

    Args:
        name: of the model.
        address: on the PCI bus, as "0000:65:00.0"; "" where that is not known.
        memory_bytes, free_bytes: None where NVML does not say.
    """

    name: str
    address: str = ""
    memory_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs of this machine.

    Args:
        nvidia: those that the driver shows.
        driver: the version of NVIDIA's driver; None for none.
        cuda: the newest CUDA version that the driver takes, as NVML says; None if not known.
        nvidia_cards, amd_cards: how many are on the PCI bus, with a driver or without.
        amd_driver: the driver of AMD's is loaded.
        nvml: NVML answered.
        problem: why it did not, where there is a driver; "" where it did or was not asked.

    `amd` says that there is a GPU of AMD's with its driver, `any` that there is one at all.
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
class Link:
    """A device's connection to the PCI bus: lanes, and the rate of each, now and at most."""

    lanes: int
    most_lanes: int
    rate_gt_per_s: float | None
    most_rate_gt_per_s: float | None


def gpus_here(root: Path = Path("/")) -> Gpus:
    """The GPUs of this machine. NVML may take its time, or not come back, where a GPU is sick.

    Args:
        root: the folder that holds /proc and /sys.
    """
    vendors = list(_vendors_of_displays(root / "sys/bus/pci/devices"))
    module = root / "proc/driver/nvidia"
    version = _VERSION.search(_said(module / "version"))
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
        # A container may lack the library of a driver that works; without a driver none answers.
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


def link_of(address: str, root: Path = Path("/")) -> Link | None:
    """A device's connection to the PCI bus; None where the machine does not say, as virtual ones.

    Args:
        address: of the device.
        root: the folder that holds /sys.
    """
    folder = root / "sys/bus/pci/devices" / address
    lanes, most = (_said(folder / f"{which}_link_width") for which in ("current", "max"))
    if not (address and lanes.isdecimal() and most.isdecimal() and 0 < int(lanes) <= 32):
        return None
    return Link(
        lanes=int(lanes),
        most_lanes=int(most),
        rate_gt_per_s=_rate(_said(folder / "current_link_speed")),
        most_rate_gt_per_s=_rate(_said(folder / "max_link_speed")),
    )


def _vendors_of_displays(devices: Path) -> Iterator[str]:
    for folder in _folders(devices):
        if _said(folder / "class")[:6] in _DISPLAYS:
            yield _said(folder / "vendor")


def _by_kernel(gpus: Path) -> Iterator[Gpu]:
    """The GPUs as the driver's files have them: names and addresses."""
    for folder in _folders(gpus):
        lines = _said(folder / "information").splitlines()
        said = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        yield Gpu(name=said.get("Model", "a GPU"), address=folder.name.lower())


def _by_nvml(nvml: Any) -> Iterator[Gpu]:
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        memory = None
        with contextlib.suppress(nvml.NVMLError):  # one that shares the host's memory has none
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        yield Gpu(
            name=_text(nvml.nvmlDeviceGetName(handle)),
            address=_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
            memory_bytes=None if memory is None else int(memory.total),
            free_bytes=None if memory is None else int(memory.free),
        )


def _address(bus_id: str) -> str:
    """NVML's address of a device as the kernel writes it: a domain of four digits, lower case."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _cuda(version: int) -> tuple[int, int]:
    return version // 1000, version % 1000 // 10


def _rate(text: str) -> float | None:
    """Of "16.0 GT/s PCIe" the number."""
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return None


def _text(given: str | bytes) -> str:
    return given.decode(errors="replace") if isinstance(given, bytes) else given


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _said(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
