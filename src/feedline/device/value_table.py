"""Conversion of uint8 pixels to values by a table, on any device. Transfers bytes, not floats.

Guarantees: results are the table's own values, bit for bit, in the layout of rows of values:
contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["ValueTable"]

_LEVELS = 256


@dataclass(frozen=True, eq=False)
class ValueTable:
    """Table of the value of each grey level in each channel.

    Args:
        table: shape (3, 256), of a dtype torch supports.
    """

    table: np.ndarray[Any, Any]

    def constants(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Values, shape (768,), and offset of each channel, int32 (1, 3, 1, 1)."""
        values = torch.from_numpy(self.table.reshape(-1).copy())
        firsts = torch.arange(0, 3 * _LEVELS, _LEVELS, dtype=torch.int32, device=device)
        return values.to(device), firsts.view(1, 3, 1, 1)

    def __call__(self, images: torch.Tensor, constants: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Values of images (N, 3, H, W), uint8: (N, 3, H, W), contiguous.

        Temporarily uses four more bytes per value, for the table indices.
        """
        values, firsts = constants
        places = images.to(torch.int32, memory_format=torch.contiguous_format).add_(firsts)
        return values.index_select(0, places.view(-1)).view(places.shape)
