"""Hugging Face Accelerate with feedline's workers.

Guarantees: if feedline supports all settings of the Accelerator, `prepare` returns the same loader:
`save_state` and `load_state` include the loader's state, and Accelerate knows the last batch of an
epoch. Otherwise `prepare` returns Accelerate's wrapper, with the batches of
`accelerator.prepare(loader)`, made by feedline's workers if the dataset is map-style. A
configuration that cannot work raises an error.
Relies on: Accelerate returning a loader unchanged if it is marked as prepared, and Accelerate's
wrapper storing the wrapped loader as `base_dataloader`.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchDataLoader

from feedline.errors import UsageError
from feedline.loader import DataLoader
from feedline.loader.dataset_kind import is_row_source
from feedline.loader.torch_samplers import nested_samplers
from feedline.system import find_attribute

# Accelerate settings that feedline supports, or that do not concern it.
_SUPPORTED = ("non_blocking", "use_stateful_dataloader")
_SUPPORTED_IF_PLANNED = ("use_seedable_sampler",)  # all ranks have one order in any case
_SUPPORTED_ON_ONE_RANK = ("even_batches",)

_TORCH_ATTRIBUTES = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
)
_FEEDLINE_ATTRIBUTES = (
    *("image_size", "max_image_size", "prefetch", "task_ms", "on_error", "start_method"),
    "in_order",
)


class _WrappedLoader(DataLoader[Any]):
    """Loader that a wrapper of Accelerate reads from."""

    in_a_wrapper = True

    state_dict = property()  # missing, because Accelerate would call it at each batch

    @classmethod
    def replace(cls, stock: TorchDataLoader[Any], loader: DataLoader[Any]) -> _WrappedLoader:
        """Build a loader from a torch loader's parts, with the feedline settings of another."""
        options = {name: getattr(stock, name) for name in _TORCH_ATTRIBUTES}
        options |= {name: getattr(loader, name) for name in _FEEDLINE_ATTRIBUTES}
        if stock.batch_sampler is not None and not isinstance(stock.sampler, BatchSampler):
            options["batch_sampler"] = stock.batch_sampler
        else:  # its sampler yields whole batches
            options |= {"sampler": stock.sampler, "batch_size": stock.batch_size}
        return cls(stock.dataset, **options)


def prepare(accelerator: Any, loader: DataLoader[Any]) -> Any:
    """Prepare a loader like `accelerator.prepare(loader)`, with feedline's workers.

    Args:
        accelerator: an `accelerate.Accelerator`.
        loader: a feedline.DataLoader.

    Returns:
        The loader itself if feedline supports all settings of the Accelerator; otherwise
        Accelerate's wrapper, to be used like any other prepared loader.

    Raises:
        UsageError: `loader` is not a feedline.DataLoader, Accelerate's wrapper cannot use it, or it
            has a seed or schedule and the Accelerator needs other batches.

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
    if not _check(loader, accelerator):
        if loader._watch_iterator is None:
            _mark_prepared(loader, accelerator)
        accelerator.skip_first_batches = SkipFirstBatches(accelerator)
        return accelerator.prepare_data_loader(loader)
    loader._warns_of_stock_loader = False
    prepared = accelerator.prepare(loader)
    stock = getattr(prepared, "base_dataloader", None)
    if isinstance(loader.dataset, IterableDataset):
        return prepared
    # feedline.patch() has Accelerate build a feedline loader.
    if type(stock) is not TorchDataLoader and not isinstance(stock, DataLoader):
        raise UsageError(
            f"Accelerate made a {type(prepared).__name__} over a {type(stock).__name__}, which "
            "cannot use feedline's workers; use accelerator.prepare instead"
        )
    accelerator.skip_first_batches = SkipFirstBatches(accelerator)
    prepared.base_dataloader = _WrappedLoader.replace(stock, loader)
    return prepared


def _check(loader: DataLoader[Any], accelerator: Any) -> str:
    """Reason why feedline does not support the settings of an Accelerator; "" if it does.

    Raises:
        UsageError: with a seed or a schedule, instead of the reason.
    """
    planned = loader.order is not None or is_row_source(loader.dataset)
    processes = accelerator.num_processes
    if planned and processes != loader.ranks:
        raise UsageError(
            f"the loader distributes its samples over {loader.ranks} ranks, but Accelerate runs "
            f"{processes} processes; set a seed, so that the loader distributes the samples "
            "itself, and build it after the Accelerator, or pass rank and world_size"
        )
    reason = _unsupported(loader, accelerator, planned=planned)
    if reason and planned:
        raise UsageError(
            f"the loader makes its own order, but {reason}; remove that, or remove seed and "
            "schedule from the loader: then Accelerate distributes the samples"
        )
    seeded = [name for name in ("schedule", "seed") if getattr(loader, name) is not None]
    if reason and seeded:
        raise UsageError(
            f"{' and '.join(seeded)} and a sampler are set on the loader, and {reason}, for which "
            "it builds a loader without them; remove them, or remove the sampler: then "
            "feedline makes the order and distributes it"
        )
    return reason


def _unsupported(loader: DataLoader[Any], accelerator: Any, *, planned: bool) -> str:
    mesh = getattr(accelerator, "torch_device_mesh", None)
    if mesh is not None and {"tp", "cp", "sp"} & set(mesh.mesh_dim_names or ()):
        return "several ranks share one batch in the Accelerator's device mesh"
    processes, config = accelerator.num_processes, accelerator.dataloader_config
    supported = _SUPPORTED + (_SUPPORTED_IF_PLANNED if planned else ())
    supported += _SUPPORTED_ON_ONE_RANK if processes == 1 else ()
    names = [field.name for field in dataclasses.fields(config) if field.name not in supported]
    default = type(config)()
    settings = [
        f"{name}={getattr(config, name)!r}"
        for name in names
        if getattr(config, name) != getattr(default, name)
    ]
    if settings:
        return f"the Accelerator has DataLoaderConfiguration({', '.join(settings)})"
    if planned and find_attribute(loader.dataset, "set_epoch") is not None:
        return "Accelerate does not call the dataset's set_epoch for a loader it leaves unchanged"
    if planned:
        return ""
    if isinstance(loader.dataset, IterableDataset):
        return "the dataset is an IterableDataset"
    if processes > 1:
        return f"Accelerate runs {processes} processes"
    parts = (loader.dataset, *nested_samplers(loader.batch_sampler))
    if any(find_attribute(part, "set_epoch") is not None for part in parts):
        return "Accelerate sets the epoch of the sampler or the dataset"
    return ""


def _mark_prepared(loader: DataLoader[Any], accelerator: Any) -> None:
    """Mark a loader as prepared, and report its iterations to Accelerate.

    `accumulate` and `gather_for_metrics` read two attributes of the active loader:
    `end_of_dataloader` is True at the epoch's last batch, and `remainder` is the number of rows of
    the last batch over all ranks that are not repetitions (0: all rows; -1: unknown).
    """
    config, target = accelerator.dataloader_config, accelerator.device
    sends = accelerator.device_placement and not loader.device and target.type != "cpu"
    send_to_device = sys.modules["accelerate.utils"].send_to_device
    gradient_state = sys.modules["accelerate.state"].GradientState()
    loader_ref, passes = weakref.ref(loader), 0  # weak, because it holds the function below

    def report(iterator: Any) -> Iterator[Any]:
        nonlocal passes
        loader = loader_ref()
        assert loader is not None, "an iterator keeps its loader alive"
        loader.end_of_dataloader, loader.remainder = False, unpadded_rows(loader)
        passes += 1
        if passes == 1:  # Accelerate removes all entries of a loader at once
            gradient_state._add_dataloader(loader)
        try:
            for batch in iterator:
                loader.end_of_dataloader = iterator.at_end()
                if sends:
                    batch = send_to_device(batch, target, non_blocking=config.non_blocking)
                yield batch
        finally:
            passes -= 1
            if not passes:
                gradient_state._remove_dataloader(loader)

    loader._watch_iterator = report


def unpadded_rows(loader: DataLoader[Any]) -> int:
    """Rows of the epoch's last batch over all ranks that are not repetitions.

    0 for all rows, -1 if unknown.
    """
    rows_per_batch = loader.batch_size or find_attribute(loader.batch_sampler, "batch_size")
    if loader.order is not None:
        phase = loader.order.schedule.phase_at(loader.epoch)
        rows_per_batch = loader.order.global_batch_size(phase) // loader.ranks
    if not isinstance(rows_per_batch, int) or not hasattr(type(loader.dataset), "__len__"):
        return -1
    if loader.drop_last:
        return 0
    rows = len(loader.dataset) % (rows_per_batch * loader.ranks)
    # Each of the last `missing` ranks has one repeated row at the end of its batch. Accelerate
    # drops rows at the end of the gathered batch, which is correct only if one rank has such a row.
    missing = -rows % loader.ranks
    if missing > 1:
        warnings.warn(
            f"the epoch's last batch repeats {missing} rows, one on each of the last {missing} "
            "ranks, and gather_for_metrics counts them; choose a dataset length or batch_size "
            "with less padding, or drop the last `loader.batch.padding` rows yourself",
            RuntimeWarning,
            stacklevel=4,
        )
    return rows if missing < 2 else 0


class SkipFirstBatches:
    """Method `skip_first_batches` of an Accelerator that prepared a feedline loader.

    For a loader, the call returns the same loader, whose next iteration begins after these batches
    without making them; a loader whose loaded state is already at that step is not changed. For a
    wrapper from `prepare`, the call returns a wrapper of the remaining batches, with feedline's
    workers.

    Raises:
        UsageError: the loader's loaded state is at a later batch.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = weakref.ref(accelerator)  # weak, because it holds this object

    def __call__(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return the rest of an epoch after a number of batches."""
        # Not isinstance, which is True for Accelerate's wrappers of the class, too.
        is_unwrapped = issubclass(type(dataloader), DataLoader)
        if is_unwrapped and dataloader._is_accelerate_prepared:
            dataloader.set_step(num_batches)
            return dataloader
        accelerator: Any = self._accelerator()
        rest = type(accelerator).skip_first_batches(accelerator, dataloader, num_batches)
        base = getattr(dataloader, "base_dataloader", None)
        if type(base) is _WrappedLoader:
            rest.base_dataloader = _WrappedLoader.replace(rest.base_dataloader, base)
        return rest

    def __reduce__(self) -> Any:
        return SkipFirstBatches, (self._accelerator(),)


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

    def log(figures: dict[str, float]) -> None:
        accelerator.log(figures, step=int(figures["feedline/batches"]))

    return log
