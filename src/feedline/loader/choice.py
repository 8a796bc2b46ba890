"""The cursor that a loader takes and who makes its batches, chosen from its arguments.

Guarantees: nothing chosen here keeps the loader alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset

from feedline.dataset.worker_init import BegunRows, WorkerInit
from feedline.device.normalise import Normalise
from feedline.engine.start_method import default_start_method
from feedline.errors import UsageError
from feedline.loader.backends.backend import Backend
from feedline.loader.backends.restarting import RestartingBackend
from feedline.loader.backends.torch_engine import TorchBackend
from feedline.loader.build import PATIENCE_S, row_maker
from feedline.loader.cursor import BatchCursor, Cursor
from feedline.loader.user import UserData, fingerprint_of, is_source, usual_road
from feedline.plan.planned_cursor import PlannedCursor
from feedline.plan.schedule import Schedule
from feedline.plan.seeds import mix
from feedline.sampling.sampled_cursor import SampledCursor
from feedline.sampling.samplers import share_of

__all__ = ["Choice", "choose"]


@dataclass(frozen=True)
class Choice:
    """What a loader works with.

    Args:
        standing: where it stands.
        maker: makes them.
        road: how workers start.
        user: gives a user's Dataset and how its batches are made, as the loader has it then;
            None for any other.
    """

    standing: Cursor
    maker: Backend
    road: str
    user: Callable[[], UserData] | None = None


def choose(loader: Any, phases: Schedule | None, normalise: Normalise) -> Choice:
    """Choose by the attributes of a loader.

    Args:
        loader: a feedline DataLoader, as far as it is built.
        phases: of image size.
        normalise: for batches on a device.
    """
    dataset, context = loader.dataset, loader.multiprocessing_context
    own = is_source(dataset)
    usual = default_start_method() if own and context is None else usual_road(context)
    road = loader.start_method or usual
    fingerprint = fingerprint_of(dataset)
    if isinstance(dataset, IterableDataset):
        stock = TorchBackend(loader, fingerprint)
        return Choice(stock, stock, road)
    cursor = _cursor(loader, phases, fingerprint)
    if own:
        return Choice(cursor, _own_maker(loader, cursor, phases, normalise, road), road)
    user = partial(_user_data, weakref.ref(loader), cursor, phases, road, [])
    renewed = RestartingBackend(
        cursor.begin,
        lambda workers: user().start(workers),
        lambda: user().look(),
        loader.num_workers,
        persistent=loader.persistent_workers,
        fits=lambda maker: user().fits(maker),
    )
    return Choice(cursor, renewed, road, user)


def _user_data(
    of: weakref.ref[Any],
    cursor: BatchCursor,
    phases: Schedule | None,
    road: str,
    no_rows: list[str],
) -> UserData:
    """What a loader's attributes say now: as torch's, most of them may be set at any time."""
    loader = of()
    assert loader is not None, "an iteration keeps its loader alive"
    return UserData(
        loader.dataset,
        loader.collate_fn,
        batched=loader._auto_collation,
        worker_init_fn=loader.worker_init_fn,
        cursor=cursor,
        phases=phases,
        max_rows=_most_rows(loader),
        max_image_size=loader.max_image_size,
        prefetch=loader.prefetch,
        ahead=2 if loader.prefetch_factor is None else loader.prefetch_factor,
        start_method=road,
        deadline_s=loader.timeout,
        in_order=loader.in_order or loader.plan is not None,
        in_process=loader.num_workers == 0,
        on_error=loader.on_error,
        pin=loader.pin_memory,
        no_rows=no_rows,
    )


def _generator(of: weakref.ref[Any]) -> Any:
    loader = of()
    return None if loader is None else loader.generator


def _cursor(loader: Any, phases: Schedule | None, fingerprint: str) -> BatchCursor:
    if loader.plan:
        return PlannedCursor(loader.plan, endless=loader.schedule is None, dataset=fingerprint)
    rank, ranks = share_of(loader._index_sampler)
    identity = partial(
        _identity,
        loader.dataset,
        fingerprint,
        None if loader.batch_size is None else loader.batch_size * ranks,
        loader.drop_last,
        None if phases is None else str(phases),
    )
    return SampledCursor(
        loader._index_sampler,
        partial(_generator, weakref.ref(loader)),
        identity,
        phases,
        share=(rank, ranks),
        seed=loader.seed,
    )


def _own_maker(
    loader: Any, cursor: BatchCursor, phases: Schedule | None, normalise: Normalise, road: str
) -> Backend:
    assert phases is not None, "feedline's own sources have a size"
    if not _most_rows(loader):
        raise UsageError(
            f"how many rows will a batch of {type(loader.dataset).__name__} have? Memory for "
            "batches is allocated once, and neither batch_size nor the batch_sampler says: give "
            "the batch sampler an attribute batch_size, of its largest batch; for single samples "
            "pass batch_size=1"
        )
    rows = loader.dataset
    if loader.worker_init_fn is not None:
        rows = BegunRows(rows, WorkerInit(rows, loader.worker_init_fn, mix(loader.seed or 0)))
    return row_maker(
        rows,
        cursor,
        phases=phases.phases,
        batch_size=_most_rows(loader),
        max_image_size=loader.max_image_size,
        prefetch=loader.prefetch,
        workers=loader.num_workers,
        start_method=road,
        timeout_s=loader.timeout or PATIENCE_S,
        on_error=loader.on_error,
        device=loader.device,
        normalise=normalise,
        pin=loader.pin_memory,
    )


def _most_rows(loader: Any) -> int:
    """Rows of the largest batch; 0 where nobody knows."""
    batches = loader.batch_sampler
    rows: int = loader.batch_size or getattr(batches, "batch_size", None) or 0
    if not rows and type(batches) in (list, tuple):
        rows = max((len(keys) for keys in batches if isinstance(keys, Sized)), default=0)
    return rows


def _identity(
    dataset: Any,
    fingerprint: str,
    global_batch: int | None,
    drop_last: bool,
    schedule: str | None,
) -> dict[str, Any]:
    """What a state of sampled epochs must have in common with the loader that goes on from it."""
    return {
        "dataset": fingerprint,
        "length": len(dataset) if hasattr(dataset, "__len__") else None,
        "global_batch": global_batch,
        "drop_last": drop_last,
        "schedule": schedule,
    }
