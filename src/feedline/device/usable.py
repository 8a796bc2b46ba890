"""Which device a name means here: the CPU, or the accelerator that torch drives on this machine.

Guarantees: a device is torch's own name for it ("cuda" is AMD's too, "mps" is Apple's, "xpu"
Intel's), and one that is not there is an error at once, not at the first batch.
Relies on: `torch.accelerator` of 2.6; before that, on what torch says of CUDA and MPS.
"""

from __future__ import annotations

import difflib

import torch

from feedline.errors import UsageError

__all__ = ["accelerator_type", "synchronize", "usable_device"]


_OTHER_NAMES = ("gpu", "nvidia", "amd", "rocm", "hip", "metal", "apple", "intel")
"""What accelerators are called elsewhere."""


def accelerator_type() -> str | None:
    """The type of the accelerator that torch sees here; None where there is only the CPU."""
    if hasattr(torch, "accelerator"):
        found = torch.accelerator.current_accelerator()
        # In a build for an accelerator it is named even where the machine has none.
        return found.type if found is not None and torch.accelerator.is_available() else None
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


def usable_device(device: str | torch.device) -> torch.device:
    """The device that was asked for, with its index.

    Args:
        device: "cpu", or torch's name of an accelerator, as "cuda", "cuda:1", "mps" or "xpu".

    Raises:
        UsageError: it does not exist here.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(_unknown(device), argument="device") from None
    if found.type == "cpu":
        return found
    there = accelerator_type()
    if found.type != there:
        raise UsageError(
            f"{device} is not available: torch sees "
            f"{'no accelerator' if there is None else repr(there)} here{_advice(found.type)}",
            argument="device",
            fix={"device": there or "cpu"},
        )
    module = getattr(torch, found.type)
    if found.index is None:
        current = getattr(module, "current_device", lambda: 0)  # mps has one device, and no names
        return torch.device(found.type, current())
    if found.index >= (count := module.device_count()):
        raise UsageError(
            f"{device} does not exist: torch sees {count} of them, numbered from 0",
            argument="device",
        )
    return found


def _unknown(device: object) -> str:
    """Describe a name that torch does not know, for the error message."""
    there = ["cpu", *([found] if (found := accelerator_type()) is not None else [])]
    kind, colon, index = str(device).partition(":")
    near = difflib.get_close_matches(kind.lower(), [*_OTHER_NAMES, *there], n=1, cutoff=0.5)
    # Names of others for an accelerator mean the one that is here; without one, the CPU is left.
    meant = ["" if name not in _OTHER_NAMES else there[-1] for name in near]
    hint = f"; the nearest is {(meant[0] or near[0]) + colon + index!r}" if near else ""
    return f"{device!r} is not a device of torch; available: {' and '.join(map(repr, there))}{hint}"


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked of it; at once on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize()


def _advice(kind: str) -> str:
    """What else to look at where a kind of accelerator is missing."""
    return ", or look at `nvidia-smi` and torch.version.cuda" if kind == "cuda" else ""
