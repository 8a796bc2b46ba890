"""What a training run asks of its process: device, precision and the global random state.

This is the one place of feedline that touches global state, and only the trainer's own process
calls it: `prepare_process` seeds torch (initial weights, dropout) and lets cuDNN choose its
fastest kernels for each shape.
"""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from feedline.device.usable import usable_device
from feedline.errors import UsageError
from feedline.plan.seeds import mix
from feedline.system import affinity_cores

__all__ = [
    "choose_device",
    "choose_precision",
    "machine",
    "prepare_process",
    "random_state",
    "reseed",
    "restore_random_state",
]


def choose_device(name: str) -> torch.device:
    """The device that a name means to this process.

    Args:
        name: "auto" for CUDA (also ROCm's) where it is there, and else the CPU; or a device as
            torch names it, such as "cpu", "cuda", "mps" or "xpu".

    Raises:
        UsageError: there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torch.cuda.is_available():
        # Each process of a machine has a GPU of its own.
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    return usable_device(name)


def choose_precision(amp: str, device: torch.device) -> torch.dtype:
    """What a step computes in, by "auto", "off", "bf16" or "fp16".

    "auto" is bfloat16 on a GPU that has it, else float16; float32 on a CPU.

    Raises:
        UsageError: float16 was asked for on a CPU, where it gains nothing.
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
    """Seed torch's global generators and set cuDNN up; call once, before the model is made."""
    torch.manual_seed(seed)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True


def reseed(seed: int, rank: int) -> None:
    """Let ranks other than 0 draw otherwise from here on: each drops other units."""
    if rank:
        torch.manual_seed(mix(seed, rank) >> 1)


def random_state(device: torch.device) -> dict[str, Any]:
    """torch's random state (dropout draws from it), for a checkpoint."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state[device.type] = getattr(torch, device.type).get_rng_state(*_numbered(device))
    return state


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Put back what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type != "cpu" and device.type in state:
        module = getattr(torch, device.type)
        module.set_rng_state(state[device.type], *_numbered(device))


def _numbered(device: torch.device) -> tuple[torch.device, ...]:
    """What names a device to its own module: torch.mps knows one only."""
    return () if device.type == "mps" else (device,)


def machine(device: torch.device) -> dict[str, Any]:
    """What the run ran on. `cpus`: logical CPUs that this process may use."""
    on_cuda = device.type == "cuda"
    return {
        "cpus": affinity_cores(),
        "torch_threads": torch.get_num_threads(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if on_cuda else platform.processor(),
        "platform": platform.platform(),
    }
