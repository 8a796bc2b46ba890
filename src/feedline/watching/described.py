"""A loader of someone else's, as a run tells of it: what its attributes say, and no more."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable
from typing import Any

from feedline.trace.run import Loader

__all__ = ["described"]


def described(iterable: Iterable[Any]) -> Loader:
    """Describe what gives the batches."""
    name = f"{type(iterable).__module__}.{type(iterable).__qualname__}"
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(iterable, torch_data.DataLoader):
        return Loader(kind="other", name=name)
    dataset = iterable.dataset
    try:
        samples: int | None = len(dataset)
    except TypeError:
        samples = None
    collate = iterable.collate_fn
    default = collate in (torch_data.default_collate, torch_data.default_convert)
    context = iterable.multiprocessing_context or multiprocessing
    return Loader(
        kind="torch",
        name=name,
        dataset=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        samples=samples,
        workers=iterable.num_workers,
        prefetch_factor=iterable.prefetch_factor,
        persistent_workers=iterable.persistent_workers,
        pin_memory=iterable.pin_memory,
        batch_size=iterable.batch_size,
        start_method=context.get_start_method() if iterable.num_workers else "",
        collate="" if default else getattr(collate, "__qualname__", type(collate).__qualname__),
    )
