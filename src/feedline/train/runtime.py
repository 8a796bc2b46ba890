"""Process-wide state of a training: device, precision, random states, out-of-memory errors.

The one place of feedline that changes global state, called by the training process only:
`prepare_process` seeds torch (initial weights, dropout) and lets cuDNN choose the fastest kernels
for each shape.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from feedline.device.usable import usable_device
from feedline.errors import UsageError
from feedline.plan.seeds import mix
from feedline.system import affinity_cores
from feedline.tuning.device_memory import is_out_of_memory

__all__ = [
    "choose_device",
    "choose_precision",
    "machine",
    "memory_error",
    "prepare_process",
    "random_state",
    "reseed",
    "restore_random_state",
]


def choose_device(name: str) -> torch.device:
    """Choose the device of this process.

    Args:
        name: "auto" for CUDA (or ROCm) if available, otherwise the CPU; or a device of torch, such
            as "cpu", "cuda", "mps" or "xpu". Each process of a machine gets a GPU of its own.

    Raises:
        UsageError: the device is not available.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    return usable_device(name)


def choose_precision(amp: str, device: torch.device) -> torch.dtype:
    """Choose the dtype of a step from "auto", "off", "bf16" or "fp16".

    "auto" is bfloat16 on a GPU with native support, float16 on other GPUs, float32 on a CPU.

    Raises:
        UsageError: float16 on a CPU, where it gains nothing.
    """
    on_cuda = device.type == "cuda"
    if amp == "fp16" and not on_cuda:
        raise UsageError("amp 'fp16' needs a CUDA device; use 'bf16' or 'off' on a CPU")
    if amp == "off" or (amp == "auto" and not on_cuda):
        return torch.float32
    # is_bf16_supported() also counts emulation; tensor cores have bfloat16 from compute 8.0 on.
    native = on_cuda and torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.bfloat16 if amp == "bf16" or (amp == "auto" and native) else torch.float16


def prepare_process(*, seed: int, device: torch.device) -> None:
    """Seed torch's global generators and configure cuDNN; call once, before making the model."""
    torch.manual_seed(seed)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True


def reseed(seed: int, rank: int) -> None:
    """Seed ranks other than 0 differently: each drops other units."""
    if rank:
        torch.manual_seed(mix(seed, rank) >> 1)


def random_state(device: torch.device) -> dict[str, Any]:
    """torch's random state, from which dropout draws, for a checkpoint."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = getattr(torch, device.type).get_rng_state(*_numbered(device))
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        module = getattr(torch, device.type)
        module.set_rng_state(state[device.type], *_numbered(device))


def _numbered(device: torch.device) -> tuple[torch.device, ...]:
    """The device as an argument of its own module; torch.mps has one device only."""
    return () if device.type == "mps" else (device,)


def machine(device: torch.device) -> dict[str, Any]:
    """Facts about the machine. `cpus`: logical CPUs that this process may use."""
    on_cuda = device.type == "cuda"
    return {
        "cpus": affinity_cores(),
        "torch_threads": torch.get_num_threads(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if on_cuda else platform.processor(),
        "platform": platform.platform(),
    }


@contextmanager
def memory_error(what: str, hint: str) -> Iterator[None]:
    """Turn torch's out-of-memory errors into one that names the batch.

    Args:
        what: the batch, with its number of images and their size.
        hint: what to do about it.

    Raises:
        UsageError: the device's memory is out.
    """
    try:
        yield
    except RuntimeError as error:  # base class of torch's own
        if not is_out_of_memory(error):
            raise
        first = str(error).strip().partition("\n")[0].rstrip(".")
        raise UsageError(f"{what} does not fit the device's memory: {first}", hint=hint) from error
