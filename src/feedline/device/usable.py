"""Resolution of device names: the CPU, or the accelerator torch drives on this machine.

Guarantees: device names are torch's ("cuda" is AMD's too, "mps" is Apple's, "xpu" Intel's), and a
missing device raises an error at once, not at the first batch.
Relies on: `torch.accelerator` of 2.6; before that, on torch's CUDA and MPS checks.
"""

from __future__ import annotations

import difflib

import torch

from feedline.errors import UsageError

__all__ = ["accelerator_type", "synchronize", "usable_device"]


_OTHER_NAMES = ("gpu", "nvidia", "amd", "rocm", "hip", "metal", "apple", "intel")
"""What accelerators are called elsewhere."""


def accelerator_type() -> str | None:
    """Type of the accelerator that torch detects; None if there is only the CPU."""
    if hasattr(torch, "accelerator"):
        found = torch.accelerator.current_accelerator()
        # In a build for an accelerator it is named even where the machine has none.
        return found.type if found is not None and torch.accelerator.is_available() else None
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else None


def usable_device(device: str | torch.device) -> torch.device:
    """Resolve a device and its index.

    Args:
        device: "cpu", or torch's name of an accelerator, e.g. "cuda", "cuda:1", "mps" or "xpu".

    Raises:
        UsageError: it does not exist on this machine.
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
            f"{device} is not available: torch detects "
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
            f"{device} is not available: torch detects {count} {found.type} "
            f"device{'s' * (count != 1)}, numbered from 0",
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
    """Wait until the device has finished its queued work. Returns at once for the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize()


def _advice(kind: str) -> str:
    """Further advice if a kind of accelerator is missing."""
    return "; check `nvidia-smi` and torch.version.cuda" if kind == "cuda" else ""
