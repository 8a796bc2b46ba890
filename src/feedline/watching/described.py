"""A loader of someone else's, as a run tells of it: what its attributes say, and no more."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable
from typing import Any

from feedline.loader import DataLoader
from feedline.loader.recording import described as described_own
from feedline.trace.run import Loader

__all__ = ["described", "torch_loader"]


def torch_loader(iterable: Any) -> Any:
    """The torch DataLoader that gives the batches: the iterable, or what Accelerate wraps."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(iterable, torch_data.DataLoader):
        return None
    inner = getattr(iterable, "base_dataloader", iterable)
    return inner if isinstance(inner, torch_data.DataLoader) else iterable


def described(iterable: Iterable[Any]) -> Loader:
    """Describe what gives the batches."""
    name = f"{type(iterable).__module__}.{type(iterable).__qualname__}"
    try:
        inner = torch_loader(iterable)
        if isinstance(inner, DataLoader):
            return described_own(inner._settings(), inner._session.decision())
        return Loader(kind="other", name=name) if inner is None else _of_torch(inner, name)
    except Exception:  # of a class that has an attribute in name only
        return Loader(kind="other", name=name)


def _of_torch(loader: Any, name: str) -> Loader:
    data = sys.modules["torch.utils.data"]
    dataset, collate = loader.dataset, loader.collate_fn
    try:
        samples: int | None = len(dataset)
    except Exception:  # an IterableDataset has none, or only says so when it is asked
        samples = None
    default = any(collate is each for each in (data.default_collate, data.default_convert))
    return Loader(
        kind="torch",
        name=name,
        dataset=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        samples=samples,
        workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory=loader.pin_memory,
        batch_size=loader.batch_size,
        start_method=_start_method(loader) if loader.num_workers else "",
        collate="" if default else getattr(collate, "__qualname__", type(collate).__qualname__),
    )


def _start_method(loader: Any) -> str:
    """How workers are started. To ask multiprocessing itself would settle its default."""
    context = loader.multiprocessing_context
    method = (
        multiprocessing.get_start_method(allow_none=True)
        if context is None
        else context.get_start_method(allow_none=True)
    )
    return method or multiprocessing.get_all_start_methods()[0]
