"""uint8 pixels to the values of a table, on any device: bytes travel, floats are made there.

Guarantees: what is made are the table's own values, to the bit, in the layout that rows of values
have: contiguous.
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
    """The value of each grey level in each channel.

    Args:
        table: (3, 256), of a dtype that torch has.
    """

    table: np.ndarray[Any, Any]

    def constants(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """The values, (768), and where each channel's begin, int32 (1, 3, 1, 1)."""
        values = torch.from_numpy(self.table.reshape(-1).copy())
        firsts = torch.arange(0, 3 * _LEVELS, _LEVELS, dtype=torch.int32, device=device)
        return values.to(device), firsts.view(1, 3, 1, 1)

    def __call__(self, images: torch.Tensor, constants: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """The values of images (N, 3, H, W), uint8: (N, 3, H, W), contiguous.

        Meanwhile it takes four bytes a value more, for the places in the table.
        """
        values, firsts = constants
        places = images.to(torch.int32, memory_format=torch.contiguous_format).add_(firsts)
        return values.index_select(0, places.view(-1)).view(places.shape)
