"""Replacement of an Accelerator's method `skip_first_batches`, once it has prepared a loader."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

__all__ = ["BUILDS_STOCK", "SkipFirstBatches"]

BUILDS_STOCK = "Accelerate builds a torch DataLoader"
"""Beginning of warnings about it."""


class SkipFirstBatches:
    """Method `skip_first_batches` of an Accelerator that prepared a feedline loader.

    Called with a loader and a number of batches, it returns the loader itself, which begins its
    next iteration after these batches without making them; a loader whose loaded state is already
    there is not changed. For a wrapper from `feedline.frameworks.accelerate.prepare`, it returns a
    wrapper of the rest, with feedline's workers.

    Raises:
        UsageError: the loader's loaded state is at a later batch.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = weakref.ref(accelerator)  # which holds this object

    def __call__(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return the rest of an epoch after a number of batches."""
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
