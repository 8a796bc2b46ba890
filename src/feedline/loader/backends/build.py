"""Construction of an engine from a decision: worker pool, slots, feed, device transfer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Any

from torch.utils.data import Subset
from torch.utils.data._utils.pin_memory import pin_memory

from feedline.engine.accelerator_transfer import AcceleratorTransfer
from feedline.engine.batch_layout import WholeBatchTransfer
from feedline.engine.crew import Crew
from feedline.engine.dataset_fetch import DatasetFetcher
from feedline.engine.defaults import slots_for
from feedline.engine.device_transfer import DeviceTransfer, HostTransfer, Tensors
from feedline.engine.devices import TorchAccelerator, register_memory, should_pin
from feedline.engine.feed import Feed
from feedline.engine.live_settings import LiveSettings
from feedline.engine.slots import FixedSlots, GrowingSlots
from feedline.engine.source import Source
from feedline.engine.start_method import start_crew
from feedline.engine.tasks import BatchTasks, PieceTasks
from feedline.engine.worker_errors import describe_sample
from feedline.engine.worker_setup import SourceWithInit, WorkerInit
from feedline.loader.backends.backend import Backend
from feedline.loader.backends.in_process import InProcessBackend
from feedline.loader.backends.workers import WorkerBackend
from feedline.loader.decide import Decision
from feedline.loader.failure_policy import row_in_words, samples_to_skip
from feedline.loader.position import LoaderPosition
from feedline.loader.settings import Settings
from feedline.order.batch_spec import BatchSpec
from feedline.recognition.tensors import batched_tensors
from feedline.trace.split import Timing

__all__ = ["build"]

_ROW_TIMEOUT_S = 120.0
"""Time on one row after which a worker counts as stuck, see `engine.patience`."""

# The fork server imports these once, so that every worker starts with them at once.
_PRELOAD = ("numpy", "torch", "simplejpeg", "PIL.Image", "feedline.images.folder")
_PRELOAD_WHOLE = (
    "numpy",
    "torch",
    "torch.utils.data",
    "PIL.Image",
    "feedline.engine.dataset_fetch",
)

_KEPT_BY_USER = 2
"""Batches a user may hold without a copy, besides those made ahead."""


def build(
    decision: Decision, settings: Settings, position: LoaderPosition, timing: Timing
) -> Backend:
    """Build an engine that starts at the position.

    Args:
        decision: chosen engine.
        settings: settings of the loader.
        position: position of the loader.
        timing: receives the times of steps.

    Raises:
        UsageError: the dataset cannot be sent to workers.
        ResourceError: not enough memory or processes on this machine.
    """
    if decision.rows is not None:
        return _started(_rows_backend(decision, settings, position, timing))
    # 63 bits, as a seed of torch's has.
    init = WorkerInit(settings.dataset, settings.worker_init_fn, position.seed & (1 << 63) - 1)
    fetcher = DatasetFetcher(
        init,
        settings.collate_fn,
        batched=settings.batched,
        skip_errors=settings.on_error == "skip",
        samples=decision.samples,
    )
    if settings.workers == 0 or decision.kind == "tensors":
        return _in_process(fetcher, decision, settings, position, timing)
    return _started(_whole_batches(fetcher, decision, settings, position, timing))


def _started(backend: WorkerBackend) -> WorkerBackend:
    """Start an engine."""
    with _closed_on_error(backend):
        backend.restart_prefetch()
    return backend


@contextlib.contextmanager
def _closed_on_error(thing: Crew | WorkerBackend) -> Iterator[None]:
    try:
        yield
    except BaseException:
        thing.close()
        raise


def _rows_backend(
    decision: Decision, settings: Settings, position: LoaderPosition, timing: Timing
) -> WorkerBackend:
    """Build workers that share batches of rows of a known size."""
    asked, native = settings.asked, settings.asked.native
    assert decision.rows is not None
    source: Source = decision.rows
    if settings.worker_init_fn is not None:
        shown = settings.dataset if isinstance(settings.dataset, Subset) else source
        init = WorkerInit(shown, settings.worker_init_fn, asked.seed or 0)
        source = SourceWithInit(source, init)
    count = slots_for(asked.prefetch)
    crew = start_crew(
        source,
        slots_bytes=count * decision.slot_bytes,
        workers=settings.workers,
        method=settings.start_method,
        preload=_PRELOAD,
        runs_user_code=decision.runs_user_code or _needs_formats_of_the_script(decision),
    )
    with _closed_on_error(crew):
        slots = FixedSlots(crew.block, decision.slot_bytes, count)
        feed = Feed(
            PieceTasks(slots, source.fields),
            crew,
            LiveSettings(
                workers=settings.workers,
                prefetch=settings.prefetch,
                task_ns=settings.task_ns,
            ),
            timeout_s=settings.timeout_s or _ROW_TIMEOUT_S,
            deadline_s=settings.timeout_s or inf,
            ahead=settings.workers > 0,
            sample=partial(row_in_words, source),
        )
        # torch's default collate makes lists of tuples.
        form: Callable[[Tensors], Any] = tuple if native else list
        transfer: DeviceTransfer
        if asked.device is not None and asked.device.type != "cpu":
            assert decision.on_device is not None, (
                "device transforms are set for batches on a device"
            )
            transfer = AcceleratorTransfer(
                slots,
                decision.on_device,
                TorchAccelerator(asked.device),
                register_memory(crew.block, asked.device),
                form,
            )
        else:
            transfer = HostTransfer(slots, decision.on_device, form, should_pin(settings.pin))
        transfer.timing = timing
        policy = partial(samples_to_skip, source, slots, settings.on_error)
        return WorkerBackend(feed, transfer, position, policy, skip_after_error=not native)


def _needs_formats_of_the_script(decision: Decision) -> bool:
    """Return True if workers read images with formats that were added to Pillow."""
    if decision.kind not in ("rows", "samples"):
        return False
    from feedline.recognition.pillow_reading import has_added_formats

    return has_added_formats()


def _whole_batches(
    fetcher: DatasetFetcher,
    decision: Decision,
    settings: Settings,
    position: LoaderPosition,
    timing: Timing,
) -> WorkerBackend:
    """Build workers that make whole batches, one each."""
    crew = start_crew(
        fetcher,
        slots_bytes=0,
        workers=settings.workers,
        method=settings.start_method,
        preload=_PRELOAD_WHOLE,
        # Of samples and collate_fn, what is pickled says.
        runs_user_code=decision.kind == "dataset" or _needs_formats_of_the_script(decision),
    )

    slots = GrowingSlots(0)
    tasks = BatchTasks(slots, kept=_KEPT_BY_USER, shares_memory=crew.shares_memory)
    live = LiveSettings(
        workers=settings.workers,
        prefetch_factor=settings.prefetch_factor,
        ahead=settings.ahead,
    )
    tasks.resize(live)
    feed = Feed(
        tasks,
        crew,
        live,
        timeout_s=settings.timeout_s or _ROW_TIMEOUT_S,
        deadline_s=settings.timeout_s or inf,
        in_order=settings.in_order,
        replaces=False,  # a user's sample may take as long as it likes
        sample=partial(describe_sample, settings.dataset),
    )
    transfer = WholeBatchTransfer(slots, spare=_KEPT_BY_USER, pin=settings.pin)
    transfer.timing = timing
    return WorkerBackend(feed, transfer, position, lambda flight: [])


def _in_process(
    fetcher: DatasetFetcher,
    decision: Decision,
    settings: Settings,
    position: LoaderPosition,
    timing: Timing,
) -> InProcessBackend:
    """Build an engine that makes batches in this process on request."""
    pinned = should_pin(settings.pin)

    def make(batch: BatchSpec) -> Any:
        made = None
        if decision.kind == "tensors":
            # Looked at for each batch: in this process a change shows at once, as torch's does.
            found = batched_tensors(settings.dataset, settings.collate_fn, settings.max_rows)
            with contextlib.suppress(Exception):  # samples have to be asked for, or say more
                made = found.gather and found.gather(batch.dataset_keys)
        if made is None:
            made = fetcher.make_here(batch)
        return pin_memory(made) if pinned else made

    return InProcessBackend(make, position, timing)
