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
        raise _unavailable(device) from None
    if found.type == "cpu":
        return found
    if found.type != accelerator_type():
        raise _unavailable(device)
    module = getattr(torch, found.type)
    if found.index is None:
        current = getattr(module, "current_device", lambda: 0)  # mps has one device, and no names
        return torch.device(found.type, current())
    if found.index >= (count := module.device_count()):
        last = f" to {found.type}:{count - 1}" if count > 1 else ""
        raise UsageError(
            f"must be {found.type}:0{last} on this machine, got {device}", argument="device"
        )
    return found


def _unavailable(device: str | torch.device) -> UsageError:
    """Error for a device that torch does not know or does not detect."""
    there = ["cpu", *([found] if (found := accelerator_type()) is not None else [])]
    kind, _, index = str(device).partition(":")
    near = difflib.get_close_matches(kind.lower(), [*_OTHER_NAMES, *there], n=1, cutoff=0.5)
    nearest = near[0] if near and near[0] in there else there[-1]
    if nearest != "cpu" and index.isdecimal():
        nearest += f":{index}"
    detected = "no accelerator" if len(there) == 1 else f"the accelerator {there[1]!r}"
    shown = repr(device) if isinstance(device, str) else str(device)
    check = "check `nvidia-smi` and torch.version.cuda, or use another device"
    return UsageError(
        f"must be {' or '.join(map(repr, there))} on this machine, got {shown}: torch "
        f"detects {detected}",
        argument="device",
        hint=check if kind == "cuda" else "",
        fix={"device": nearest},
    )


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queued work. Returns at once for the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        getattr(torch, device.type).synchronize()
