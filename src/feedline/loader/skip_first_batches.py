"""What an Accelerator does as its method `skip_first_batches` once it has prepared a loader."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

__all__ = ["BUILDS_STOCK", "SkipFirstBatches"]

BUILDS_STOCK = "Accelerate builds a stock DataLoader"
"""How warnings of it begin."""


class SkipFirstBatches:
    """The method `skip_first_batches` of an Accelerator that prepared a loader of feedline's.

    Called with a loader and a number of batches, it gives the loader itself, which begins its next
    iteration behind these batches and makes none of them; a loader that a state has brought there
    already is left as it is. Of a wrapper that `feedline.frameworks.accelerate.prepare` gave, it
    gives a wrapper of the rest, with feedline's workers.

    Raises:
        UsageError: a state brought the loader to a later batch.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = weakref.ref(accelerator)  # which holds this object

    def __call__(self, dataloader: Any, num_batches: int = 0) -> Any:
        """The rest of an epoch behind so many batches."""
        # Not isinstance: a wrapper of Accelerate's says that it is of the class it wraps.
        kept = hasattr(type(dataloader), "check_accelerator")
        if kept and dataloader.gradient_state is not None:
            dataloader.set_step(num_batches)
            return dataloader
        accelerator: Any = self._accelerator()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", BUILDS_STOCK, RuntimeWarning)
            rest = type(accelerator).skip_first_batches(accelerator, dataloader, num_batches)
        in_place_of = getattr(getattr(dataloader, "base_dataloader", None), "in_place_of", None)
        if in_place_of is not None:
            rest.base_dataloader = in_place_of(rest.base_dataloader)
        return rest

    def __reduce__(self) -> Any:
        return SkipFirstBatches, (self._accelerator(),)
