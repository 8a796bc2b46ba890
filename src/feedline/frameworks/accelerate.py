"""Hugging Face Accelerate with feedline's workers, also if Accelerate distributes the samples.

Guarantees: the batches of `accelerator.prepare(loader)`, for every setting and number of processes,
made by feedline's workers if the dataset is map-style.
Relies on: Accelerate's wrapper storing the loader it reads from as `base_dataloader`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.loader.accelerate import BUILDS_STOCK, SkipFirstBatches

__all__ = ["prepare", "tracker"]

_TORCHS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
)
_OURS = (
    *("image_size", "max_image_size", "prefetch", "task_ms", "on_error", "start_method"),
    "in_order",
)


class _Inner(DataLoader[Any]):
    """Loader that a wrapper of Accelerate reads from."""

    in_a_wrapper = True

    # Accelerate asks a loader that has a state for it, at each batch.
    state_dict = property()

    def in_place_of(self, stock: TorchDataLoader[Any]) -> _Inner:
        return _in_place_of(stock, self)


def _in_place_of(stock: TorchDataLoader[Any], loader: DataLoader[Any]) -> _Inner:
    """Build a loader from a torch loader's parts, with the feedline settings of another."""
    options = {name: getattr(stock, name) for name in _TORCHS}
    options |= {name: getattr(loader, name) for name in _OURS}
    if stock.batch_sampler is not None and not isinstance(stock.sampler, BatchSampler):
        options["batch_sampler"] = stock.batch_sampler
    else:  # its sampler gives whole batches
        options |= {"sampler": stock.sampler, "batch_size": stock.batch_size}
    return _Inner(stock.dataset, **options)


def prepare(accelerator: Any, loader: DataLoader[Any]) -> Any:
    """Prepare a loader like `accelerator.prepare(loader)`, with feedline's workers.

    Args:
        accelerator: an `accelerate.Accelerator`.
        loader: a feedline.DataLoader.

    Returns:
        The loader itself if feedline distributes its samples over ranks; otherwise Accelerate's
        wrapper, to be used like any other prepared loader.

    Raises:
        UsageError: it is not a feedline.DataLoader, or Accelerate's wrapper cannot use one.

    Example:
        >>> accelerator = Accelerator()                                           # doctest: +SKIP
        >>> loader = feedline.DataLoader(dataset, 32, shuffle=True, num_workers=4)  # doctest: +SKIP
        >>> loader = prepare(accelerator, loader)                                 # doctest: +SKIP
    """
    if not isinstance(loader, DataLoader):
        raise UsageError(
            f"prepare expects a feedline.DataLoader, got {type(loader).__name__}; pass it to "
            "accelerator.prepare instead"
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", BUILDS_STOCK, RuntimeWarning)
        prepared = accelerator.prepare(loader)
    stock = getattr(prepared, "base_dataloader", None)
    if prepared is loader or loader._asked.iterable:
        return prepared
    if type(stock) is not TorchDataLoader:
        raise UsageError(
            f"Accelerate made a {type(prepared).__name__} over a {type(stock).__name__}, which "
            "cannot use feedline's workers; use accelerator.prepare instead"
        )
    accelerator.skip_first_batches = SkipFirstBatches(accelerator)
    prepared.base_dataloader = _in_place_of(stock, loader)
    return prepared


def tracker(accelerator: Any) -> Callable[[dict[str, float]], None]:
    """Create a `metrics=` function for `feedline.watch` that logs to Accelerate's trackers.

    The step of each figure is the number of batches so far. Accelerate logs on its main process.

    Args:
        accelerator: an `accelerate.Accelerator` after `init_trackers`.

    Example:
        >>> loader = accelerator.prepare(loader)                                  # doctest: +SKIP
        >>> for batch in feedline.watch(loader, metrics=tracker(accelerator)):    # doctest: +SKIP
        ...     step(batch)
    """

    def tell(figures: dict[str, float]) -> None:
        accelerator.log(figures, step=int(figures["feedline/batches"]))

    return tell
