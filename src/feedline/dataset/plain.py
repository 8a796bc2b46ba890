"""Plain tensors: those whose bytes can be copied, summed up and shared as they lie in memory."""

from __future__ import annotations

import torch

__all__ = ["is_plain"]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but strided bytes in this process, whatever its class."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )
