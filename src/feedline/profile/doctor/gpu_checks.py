"""GPUs of this machine, their driver and their PCI links, found without torch.

Relies on: /sys/bus/pci and /proc/driver/nvidia of Linux; nvidia-ml-py, which is optional.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from feedline.machine import Gpu, Gpus, read_link
from feedline.profile.doctor.check import CheckResult
from feedline.text import as_bytes

__all__ = ["TorchBuild", "check_gpu", "check_torch", "read_torch_build", "supports_gpus"]


_VISIBLE = "CUDA_VISIBLE_DEVICES"
_MIN_DRIVER = {11: 450, 12: 525, 13: 580}
"""Oldest driver for each CUDA version: docs.nvidia.com/deploy/cuda-compatibility,
"Minor Version Compatibility"."""
_NONE = "no NVIDIA GPU"


def check_gpu(
    found: Gpus, build: TorchBuild | None, environ: Mapping[str, str], root: Path = Path("/")
) -> Iterator[CheckResult]:
    """Run the checks "gpu", "gpu-driver" and "pcie-link".

    Args:
        found: the GPUs.
        build: the installed torch.
        environ: of the training.
        root: folder that contains /sys.
    """
    yield _gpu(found, environ.get(_VISIBLE))
    yield _driver(found, build)
    yield _links(found, root)


def _gpu(found: Gpus, visible: str | None) -> CheckResult:
    details = {
        "gpus": [asdict(gpu) for gpu in found.nvidia],
        "nvidia_cards": found.nvidia_cards,
        "amd_cards": found.amd_cards,
        _VISIBLE.lower(): visible,
    }
    if found.problem:
        return CheckResult(
            id="gpu",
            status="fail",
            summary=f"the driver does not answer: {found.problem}",
            details=details,
            fix="restart the machine or the container, if the driver was upgraded while it ran; "
            "see `nvidia-smi` and `dmesg`",
        )
    if not found.nvidia and found.nvidia_cards:
        return CheckResult(
            id="gpu",
            status="warn",
            summary="an NVIDIA card is on the bus, but no driver makes it available",
            details=details,
            fix="in a container use docker run --gpus all; otherwise install NVIDIA's driver",
        )
    if not found.nvidia and found.amd_cards:
        return CheckResult(
            id="gpu",
            status="note",
            summary="an AMD GPU is on the bus, "
            + ("with its driver" if found.amd_driver else "without its driver")
            + "; torch's ROCm builds use it; no further check",
            details=details,
        )
    if not found.nvidia:
        return CheckResult(
            id="gpu", status="note", summary="no GPU was found: training runs on the CPU",
            details=details,
        )  # fmt: skip
    names: dict[str, int] = {}
    for gpu in found.nvidia:
        names[_describe_gpu(gpu)] = names.get(_describe_gpu(gpu), 0) + 1
    line = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())
    if visible is not None and visible.split(",")[0].strip() in ("", "-1"):
        return CheckResult(
            id="gpu",
            status="warn",
            summary=f"{line}; {_VISIBLE}={visible!r} hides it",
            details=details,
            fix=f"unset {_VISIBLE}",
        )
    if visible is not None:
        line += f"; {_VISIBLE}={visible}"
    if not found.nvml:
        line += "; memory not measured: pip install nvidia-ml-py"
    return CheckResult(id="gpu", status="ok", summary=line, details=details)


def _describe_gpu(gpu: Gpu) -> str:
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return gpu.name
    return f"{gpu.name}, {as_bytes(gpu.free_bytes)} of {as_bytes(gpu.memory_bytes)} free"


def _driver(found: Gpus, build: TorchBuild | None) -> CheckResult:
    cuda = None if build is None else build.cuda
    newest = None if found.cuda is None else ".".join(map(str, found.cuda))
    details = {"driver": found.driver, "driver_takes_cuda": newest, "torch_cuda": cuda}
    if found.driver is None:
        why = "the driver does not answer: see above" if found.problem else _NONE
        return CheckResult(id="gpu-driver", status="unknown", summary=why, details=details)
    line = f"NVIDIA {found.driver}" + ("" if newest is None else f", for CUDA up to {newest}")
    if cuda is None:
        return CheckResult(id="gpu-driver", status="ok", summary=line, details=details)
    line += f"; torch is built for CUDA {cuda}"
    wanted = int(cuda.partition(".")[0]) if cuda.partition(".")[0].isdecimal() else 0
    if found.cuda is not None:
        serves = found.cuda[0] >= wanted
    elif wanted in _MIN_DRIVER:
        serves = int(found.driver.partition(".")[0]) >= _MIN_DRIVER[wanted]
    else:
        return CheckResult(
            id="gpu-driver",
            status="unknown",
            summary=f"{line}: it is unknown if the driver supports that",
            details=details,
            fix="pip install nvidia-ml-py, which reports it",
        )
    if serves:
        return CheckResult(id="gpu-driver", status="ok", summary=line, details=details)
    return CheckResult(
        id="gpu-driver",
        status="fail",
        summary=f"{line}, which this driver is too old for",
        details=details,
        fix=f"upgrade the driver ({_MIN_DRIVER.get(wanted, 'a newer one')} or newer), or install "
        "a torch build for its CUDA version",
    )


def _links(found: Gpus, root: Path) -> CheckResult:
    links = {gpu.address: read_link(gpu.address, root) for gpu in found.nvidia}
    details = {
        "links": {
            address: None if link is None else asdict(link) for address, link in links.items()
        }
    }
    known = {address: link for address, link in links.items() if link is not None}
    if not known:
        why = "this machine does not report it" if links else _NONE
        return CheckResult(id="pcie-link", status="unknown", summary=why, details=details)
    narrowest = min(known.values(), key=lambda link: link.lanes)
    line = f"{narrowest.lanes} of {narrowest.most_lanes} lanes"
    if len(known) > 1:
        line = f"the narrowest of {len(known)}: {line}"
    if 4 * narrowest.lanes <= narrowest.most_lanes:
        return CheckResult(
            id="pcie-link",
            status="warn",
            summary=line,
            details=details,
            fix="put the card into a slot with all lanes, without a riser; check the slot in the "
            "mainboard's manual and in its BIOS",
        )
    whole = narrowest.lanes == narrowest.most_lanes
    return CheckResult(
        id="pcie-link", status="ok" if whole else "note", summary=line, details=details
    )


_MIN_VERSION = (2, 2)
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class TorchBuild:
    """Build of the installed torch.

    Args:
        version: with the build's target, as "2.5.1+cu124".
        cuda: CUDA version; None for a build without CUDA.
        hip: version of ROCm's HIP; None for a build without it.
    """

    version: str
    cuda: str | None
    hip: str | None


def read_torch_build(package: Path | None = None) -> TorchBuild | None:
    """Read the build of the installed torch without importing it; None if it is not installed.

    Args:
        package: folder of the package; None finds it as an import would.

    Raises:
        ValueError: its version file cannot be read.
    """
    if package is None:
        found = importlib.util.find_spec("torch")
        if found is None or not found.submodule_search_locations:
            return None
        package = Path(next(iter(found.submodule_search_locations)))
    path = package / "version.py"
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_BYTES)
        constants = _constants(text)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    version = constants.get("__version__")
    if not isinstance(version, str):
        raise ValueError(f"{path} holds no version")
    cuda, hip = constants.get("cuda"), constants.get("hip")
    return TorchBuild(
        version=version,
        cuda=cuda if isinstance(cuda, str) else None,
        hip=hip if isinstance(hip, str) else None,
    )


def _constants(source: bytes) -> dict[str, object]:
    """Names at the top of a Python file with their constant values; the file is not run."""
    found: dict[str, object] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            targets, value = node.targets, node.value.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets, value = [node.target], node.value.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                found[target.id] = value
    return found


def supports_gpus(build: TorchBuild, gpus: Gpus) -> bool:
    """Return True if a build of torch supports a GPU of this machine."""
    return bool((gpus.nvidia and build.cuda) or (gpus.amd and build.hip))


def check_torch(build: TorchBuild | None, gpus: Gpus) -> CheckResult:
    """Run the check "torch-build".

    Args:
        build: the installed build; None without torch.
        gpus: of this machine.
    """
    if build is None:
        return CheckResult(
            id="torch-build",
            status="fail",
            summary="torch is not installed, but the loader needs it",
            fix="pip install torch, with the command for this machine from "
            "https://pytorch.org/get-started/locally",
        )
    details = {"version": build.version, "cuda": build.cuda, "hip": build.hip}
    kind = f"for CUDA {build.cuda}" if build.cuda else f"for ROCm {build.hip}"
    if not build.cuda and not build.hip:
        kind = "for CPU only"
    line = f"torch {build.version}, built {kind}"
    release = re.match(r"(\d+)\.(\d+)", build.version)
    if release is None or (int(release[1]), int(release[2])) < _MIN_VERSION:
        return CheckResult(
            id="torch-build",
            status="fail",
            summary=f"{line}, but feedline needs {'.'.join(map(str, _MIN_VERSION))} or newer",
            details=details,
            fix="pip install --upgrade torch",
        )
    if gpus.any and not supports_gpus(build, gpus):
        return CheckResult(
            id="torch-build",
            status="fail",
            summary=f"{line}: it cannot use the GPU of this machine",
            details=details,
            fix="install a build for this GPU from https://pytorch.org/get-started/locally",
        )
    return CheckResult(id="torch-build", status="ok", summary=line, details=details)
