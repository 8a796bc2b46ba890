"""The engine, put together: a crew, slots, a feed, a carrier and a delivery.

For rows of a known size, which workers write side by side into one ring; for whole batches, one
worker each; and for a process that makes its batches itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from feedline.dataset.fetcher import DatasetFetcher
from feedline.dataset.gather import Gather
from feedline.dataset.whole_batch_carrier import WholeBatchCarrier
from feedline.device.carrier import Carrier
from feedline.device.cuda import CudaCarrier
from feedline.device.host import HostCarrier
from feedline.device.normalise import Normalise
from feedline.device.pinning import Pinned, pins
from feedline.engine.feed import Feed
from feedline.engine.fixed_slots import FixedSlots
from feedline.engine.growing_slots import GrowingSlots
from feedline.engine.source import Source
from feedline.engine.start_method import start_crew
from feedline.engine.tasks import BatchTasks, PieceTasks
from feedline.loader.backends.backend import Backend
from feedline.loader.backends.in_process import InProcessBackend
from feedline.loader.backends.workers import WorkerBackend
from feedline.loader.cursor import BatchCursor
from feedline.loader.failure_policy import FailurePolicy
from feedline.loader.slot_size import slot_size
from feedline.plan.batches import Batch
from feedline.plan.schedule import Phase
from feedline.randomness import seeded

PATIENCE_S = 120.0
"""How long a worker may stay on one row of a known kind before it is replaced."""

__all__ = ["PATIENCE_S", "direct_maker", "look_at_first", "row_maker", "whole_maker"]

# The fork server imports these once, so that every worker starts with them in no time.
_PRELOAD = ("numpy", "torch", "simplejpeg", "PIL.Image", "feedline.images.folder")
_PRELOAD_WHOLE = ("numpy", "torch", "torch.utils.data", "PIL.Image", "feedline.dataset.fetcher")

_KEPT_BY_USER = 2
"""Batches that a user may hold without a copy, besides those that are made ahead."""


def row_maker(
    source: Source,
    cursor: BatchCursor,
    *,
    phases: Sequence[Phase],
    batch_size: int,
    max_image_size: int | None,
    prefetch: int,
    workers: int,
    start_method: str,
    deadline_s: float = inf,
    timeout_s: float = PATIENCE_S,
    on_error: str,
    device: torch.device | None = None,
    normalise: Normalise | None = None,
    pin: bool,
    skip_after_error: bool = False,
    form: Callable[..., Any] = tuple,
) -> WorkerBackend:
    """Workers that write rows into one ring, begun now.

    Args:
        source: makes the rows.
        cursor: where the loader stands.
        phases: their sizes decide how much memory there is,
        batch_size: with the rows of a batch where a phase names none,
        max_image_size: and the largest size that may be asked for; see `slot_size`.
        prefetch: batches that are made ahead.
        workers: how many; 0 for this process.
        start_method: "fork", "forkserver" or "spawn".
        deadline_s: how long a batch may take.
        timeout_s: how long a worker may stay on one row.
        on_error: "raise" or "skip".
        device: where batches go; None for the CPU, as they are.
        normalise: makes floats of pixels for a device.
        pin: page-lock the ring.
        skip_after_error: after an error the next batch comes.
        form: what the tensors of a batch are put into.
    """
    slots = prefetch + 1
    slot_bytes, largest = slot_size(source, phases, batch_size, max_image_size)
    crew = start_crew(
        source,
        slots_bytes=slots * slot_bytes,
        workers=workers,
        method=start_method,
        preload=_PRELOAD,
    )
    ring = FixedSlots(crew.block, slot_bytes, slots)
    feed = Feed(
        PieceTasks(ring, source.fields),
        crew,
        workers=workers,
        timeout_s=timeout_s,
        deadline_s=deadline_s,
    )
    carrier: Carrier
    if device is not None and device.type == "cuda":
        assert normalise is not None, "batches on a device are normalised"
        with torch.cuda.device(device):
            carrier = CudaCarrier(ring, normalise, device, Pinned(crew.block))
    else:
        pinned = Pinned(crew.block) if pin and torch.cuda.is_available() else None
        carrier = HostCarrier(ring, normalise if device else None, form, pinned)
    delivery = WorkerBackend(
        feed,
        carrier,
        cursor,
        FailurePolicy(source, ring, on_error),
        max_image_size=largest,
        skip_after_error=skip_after_error,
    )
    return _aimed(delivery)


def whole_maker(
    source: DatasetFetcher,
    cursor: BatchCursor,
    *,
    ahead: int,
    workers: int,
    start_method: str,
    deadline_s: float,
    in_order: bool,
    pin: bool,
) -> WorkerBackend:
    """Workers that make whole batches, begun now.

    Args:
        source: makes the batches.
        cursor: where the loader stands.
        ahead: batches that are made ahead by each worker.
        workers: how many.
        start_method: "fork", "forkserver" or "spawn".
        deadline_s: how long a batch may take; 0 for ever.
        in_order: hand batches out in order, not as soon as they are made.
        pin: page-lock the tensors.
    """
    crew = start_crew(
        source, slots_bytes=0, workers=workers, method=start_method, preload=_PRELOAD_WHOLE
    )

    def slots(workers: int) -> int:
        return max(1, ahead) * workers + _KEPT_BY_USER

    parcels = GrowingSlots(slots(workers))
    feed = Feed(
        BatchTasks(parcels, slots, shares_memory=crew.shares_memory),
        crew,
        workers=workers,
        timeout_s=inf,  # a user's sample may take as long as it likes
        deadline_s=deadline_s or inf,
        in_order=in_order,
    )
    carrier = WholeBatchCarrier(parcels, spare=_KEPT_BY_USER, pin=pin)
    delivery = WorkerBackend(feed, carrier, cursor, judge=lambda flight: [])
    return _aimed(delivery)


def _aimed(delivery: WorkerBackend) -> WorkerBackend:
    """Set a delivery to work; where that fails nobody has it, to close it."""
    try:
        delivery.restart_prefetch()
    except BaseException:
        delivery.close()
        raise
    return delivery


def look_at_first(maker: Backend) -> None:
    """Wait for the first batch, and raise what `worker_init_fn` raised.

    Raises:
        StartError: it was raised where rows are made.
        Exception: a user's own, as it is.
    """
    if isinstance(maker, WorkerBackend):
        flight = maker.feed.wait()
        if flight is not None and isinstance(maker.carrier, WholeBatchCarrier):
            maker.carrier.look(flight)


def direct_maker(
    source: DatasetFetcher,
    cursor: BatchCursor,
    gatherer: Callable[[], Gather | None] | None,
    *,
    pin: bool,
) -> InProcessBackend:
    """Batches made in this process: nobody else is quicker, or nobody else is there.

    Args:
        source: makes them of samples.
        cursor: where the loader stands.
        gatherer: looks whether the dataset, as it is then, needs no samples; None: it needs them.
        pin: page-lock the tensors.
    """
    pinned = pins(pin)

    def make(batch: Batch) -> Any:
        made = _gathered(gatherer() if gatherer else None, batch.asked)
        if made is None:
            # What a worker would make, and without a trace in the user's own random states.
            with seeded(batch.whole_seed):
                made = source.make(batch.asked, batch.image_size or None, None, at=None)
        return pin_memory(made) if pinned else made

    return InProcessBackend(make, cursor)


def _gathered(gather: Gather | None, keys: Any) -> Any:
    """A batch taken from memory; None where samples have to be asked for, or have more to say."""
    if gather is not None:
        with contextlib.suppress(Exception):
            return gather(keys)
    return None
