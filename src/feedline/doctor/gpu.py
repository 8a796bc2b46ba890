"""The GPU: which it is, whether its driver serves torch, and how it hangs on the bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from rich.filesize import decimal

from feedline.doctor.check import Check
from feedline.doctor.gpus import Gpu, Gpus, link_of
from feedline.doctor.torch_build import TorchBuild

__all__ = ["look_at_gpu"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""The oldest driver for each CUDA version: docs.nvidia.com/deploy/cuda-compatibility,
"Minor Version Compatibility"."""
_NONE = "no NVIDIA GPU"


def look_at_gpu(
    found: Gpus, build: TorchBuild | None, environ: Mapping[str, str], root: Path = Path("/")
) -> Iterator[Check]:
    """The checks "gpu", "gpu-driver" and "pcie-link".

    Args:
        found: the GPUs.
        build: the installed torch.
        environ: of the training.
        root: the folder that holds /sys.
    """
    yield _gpu(found, environ.get(_VISIBLE))
    yield _driver(found, build)
    yield _links(found, root)


def _gpu(found: Gpus, visible: str | None) -> Check:
    details = {
        "gpus": [asdict(gpu) for gpu in found.nvidia],
        "nvidia_cards": found.nvidia_cards,
        "amd_cards": found.amd_cards,
        _VISIBLE.lower(): visible,
    }
    if found.problem:
        return Check(
            id="gpu",
            status="fail",
            summary=f"the driver does not answer: {found.problem}",
            details=details,
            fix="restart the machine, or the container, if the driver was upgraded under it; "
            "`nvidia-smi` and `dmesg` say more",
        )
    if not found.nvidia and found.nvidia_cards:
        return Check(
            id="gpu",
            status="warn",
            summary="an NVIDIA card is on the bus, and no driver shows it here",
            details=details,
            fix="in a container docker run --gpus all; else install NVIDIA's driver",
        )
    if not found.nvidia and found.amd_cards:
        return Check(
            id="gpu",
            status="note",
            summary="an AMD GPU is on the bus, "
            + ("with its driver" if found.amd_driver else "without its driver")
            + "; torch's builds for ROCm use it, and it is not looked at further",
            details=details,
        )
    if not found.nvidia:
        return Check(
            id="gpu", status="note", summary="none was found: training runs on the CPU",
            details=details,
        )  # fmt: skip
    names: dict[str, int] = {}
    for gpu in found.nvidia:
        names[_in_words(gpu)] = names.get(_in_words(gpu), 0) + 1
    line = ", ".join(f"{count} x {name}" if count > 1 else name for name, count in names.items())
    if visible is not None and visible.split(",")[0].strip() in ("", "-1"):
        return Check(
            id="gpu",
            status="warn",
            summary=f"{line}; {_VISIBLE}={visible!r} hides all of it",
            details=details,
            fix=f"unset {_VISIBLE}",
        )
    if visible is not None:
        line += f"; {_VISIBLE}={visible}"
    if not found.nvml:
        line += "; memory not measured: pip install nvidia-ml-py"
    return Check(id="gpu", status="ok", summary=line, details=details)


def _in_words(gpu: Gpu) -> str:
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return gpu.name
    return f"{gpu.name}, {decimal(gpu.free_bytes)} of {decimal(gpu.memory_bytes)} free"


def _driver(found: Gpus, build: TorchBuild | None) -> Check:
    cuda = None if build is None else build.cuda
    newest = None if found.cuda is None else ".".join(map(str, found.cuda))
    details = {"driver": found.driver, "driver_takes_cuda": newest, "torch_cuda": cuda}
    if found.driver is None:
        why = "it does not answer: see above" if found.problem else _NONE
        return Check(id="gpu-driver", status="unknown", summary=why, details=details)
    line = f"NVIDIA {found.driver}" + ("" if newest is None else f", for CUDA up to {newest}")
    if cuda is None:
        return Check(id="gpu-driver", status="ok", summary=line, details=details)
    line += f"; torch is built for CUDA {cuda}"
    wanted = int(cuda.partition(".")[0]) if cuda.partition(".")[0].isdecimal() else 0
    if found.cuda is not None:
        serves = found.cuda[0] >= wanted
    elif wanted in _LEAST_DRIVER:
        serves = int(found.driver.partition(".")[0]) >= _LEAST_DRIVER[wanted]
    else:
        return Check(
            id="gpu-driver",
            status="unknown",
            summary=f"{line}: whether the driver takes that is not known",
            details=details,
            fix="pip install nvidia-ml-py, by which the driver says it",
        )
    if serves:
        return Check(id="gpu-driver", status="ok", summary=line, details=details)
    return Check(
        id="gpu-driver",
        status="fail",
        summary=f"{line}, which this driver is too old for",
        details=details,
        fix=f"upgrade the driver ({_LEAST_DRIVER.get(wanted, 'a newer one')} or newer), or install "
        "a torch that is built for its CUDA version",
    )


def _links(found: Gpus, root: Path) -> Check:
    links = {gpu.address: link_of(gpu.address, root) for gpu in found.nvidia}
    details = {
        "links": {
            address: None if link is None else asdict(link) for address, link in links.items()
        }
    }
    known = {address: link for address, link in links.items() if link is not None}
    if not known:
        why = "this machine does not say" if links else _NONE
        return Check(id="pcie-link", status="unknown", summary=why, details=details)
    narrowest = min(known.values(), key=lambda link: link.lanes)
    line = f"{narrowest.lanes} of {narrowest.most_lanes} lanes"
    if narrowest.rate_gt_per_s is not None:
        line += f" at {narrowest.rate_gt_per_s:g} GT/s (an idle GPU lowers that)"
    if len(known) > 1:
        line = f"the narrowest of {len(known)}: {line}"
    if 4 * narrowest.lanes <= narrowest.most_lanes:
        return Check(
            id="pcie-link",
            status="warn",
            summary=line,
            details=details,
            fix="put the card into a slot with all lanes, without a riser; look at the slot in the "
            "mainboard's manual and in its BIOS",
        )
    whole = narrowest.lanes == narrowest.most_lanes
    return Check(id="pcie-link", status="ok" if whole else "note", summary=line, details=details)
