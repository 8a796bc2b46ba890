"""Start of an engine: worker pool, buffers, feed and device transfer of a choice.

Rows that could not be made are skipped or raised here, as `on_error` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import Subset
from torch.utils.data._utils.pin_memory import pin_memory

from feedline.engine.buffers import BatchBuffers, RowBuffers, WholeBatchBuffers
from feedline.engine.dataset_fetch import DatasetFetcher, SourceWithInit, WorkerInit
from feedline.engine.device_transfer import (
    AcceleratorTransfer,
    DeviceTransfer,
    HostTransfer,
    Tensors,
    WholeBatchTransfer,
)
from feedline.engine.devices import TorchAccelerator, register_memory, should_pin
from feedline.engine.feed import Feed
from feedline.engine.messages import HUNG
from feedline.engine.pool import WorkerPool
from feedline.engine.start_pool import start_pool
from feedline.engine.tasks import BatchTasks, InFlightBatch, LiveSettings, RowTasks, slots_for
from feedline.engine.worker import Source
from feedline.engine.worker_errors import describe_sample
from feedline.errors import ImageError, SampleError
from feedline.loader.engine_choice import EngineChoice
from feedline.loader.engines import Engine, InProcessEngine, Skipped, WorkerEngine
from feedline.loader.iterable_engine import IterableEngine
from feedline.loader.options import CurrentOptions
from feedline.loader.position import IterablePosition, LoaderPosition
from feedline.order.batch_spec import BatchSpec
from feedline.recognition.tensors import batched_tensors
from feedline.trace.split import Timing

__all__ = [
    "describe_row",
    "samples_to_skip",
    "start_engine",
]


def samples_to_skip(
    source: Source, slots: BatchBuffers, on_error: str, flight: InFlightBatch
) -> list[Skipped]:
    """Samples to skip in a batch with failed rows.

    Args:
        source: names samples.
        slots: the slot of a batch that is not delivered is released.
        on_error: "raise" or "skip".
        flight: the batch.

    Raises:
        SampleError: samples must not be skipped; the slot is free again.
    """
    failures = sorted(flight.failures, key=lambda failure: failure.row)
    batch = flight.batch
    if on_error == "skip" and len(failures) < batch.rows:
        names = [_name(source, int(batch.samples[failure.row])) for failure in failures]
        said = [f"{failure.kind}: {failure.message}" for failure in failures]
        return list(zip(names, said, strict=True))
    slots.release(flight.slot)
    first = failures[0]
    sample = int(batch.samples[first.row])
    name = _name(source, sample)
    what = first.message if name in first.message else f"{name}: {first.message}"
    unreadable = first.kind == ImageError.__name__  # which says all there is to say
    if not unreadable:
        what = f"sample {sample}, {first.kind}: {what}"
    what += f" (epoch {batch.epoch + 1}, step {batch.step + 1})"
    hint, fix = "repair or remove it, or skip such samples", {"on_error": "skip"}
    if on_error == "skip":
        what = f"none of the {batch.rows} samples of a batch could be loaded; the first: {what}"
        hint = "repair or remove it, or drop small last batches with drop_last=True"
        fix = {}
    elif first.kind == HUNG:
        what += ". Its storage may be unavailable, or the code that loads it hangs"
        hint = "wait longer with timeout=, or skip such samples"
    if first.hint:
        hint, fix = first.hint, {}
    if unreadable:
        raise ImageError(what, hint=hint, fix=fix)
    raise SampleError(f"{what}\n{first.trace}".rstrip(), hint=hint, fix=fix)


def describe_row(source: Source, batch: BatchSpec, row: int) -> tuple[int, str]:
    """Index of a batch's sample, and its description with its name."""
    sample = int(batch.samples[row])
    return sample, f"sample {sample}, {_name(source, sample)}"


def _name(source: Source, sample: int) -> str:
    try:
        return source.name(sample)
    except IndexError:  # there is none, which is why it failed
        return f"the dataset has {len(source)} samples"


_KEPT_BY_USER = 2
"""Batches a user may hold without a copy, besides those made ahead."""


def start_engine(
    choice: EngineChoice, options: CurrentOptions, position: LoaderPosition, timing: Timing
) -> Engine:
    """Build an engine that starts at the position.

    Args:
        choice: chosen engine.
        options: options of the loader.
        position: position of the loader.
        timing: receives the times of steps.

    Raises:
        UsageError: the dataset cannot be sent to workers.
        ResourceError: not enough memory or processes on this machine.
    """
    if isinstance(position, IterablePosition):
        return IterableEngine(position)
    if choice.rows is not None:
        return _started(_build_row_engine(choice, options, position, timing))
    # 63 bits, as a seed of torch's has.
    init = WorkerInit(options.dataset, options.worker_init_fn, position.seed & (1 << 63) - 1)
    fetcher = DatasetFetcher(
        init,
        options.collate_fn,
        batched=options.batched,
        skip_errors=options.on_error == "skip",
        samples=choice.samples,
    )
    if options.workers == 0 or choice.engine == "tensors":
        return _build_in_process_engine(fetcher, choice, options, position, timing)
    return _started(_build_batch_engine(fetcher, choice, options, position, timing))


def _started(engine: WorkerEngine) -> WorkerEngine:
    """Start an engine."""
    with _close_on_error(engine):
        engine.restart_prefetch()
    return engine


@contextlib.contextmanager
def _close_on_error(thing: WorkerPool | WorkerEngine) -> Iterator[None]:
    try:
        yield
    except BaseException:
        thing.close()
        raise


def _build_row_engine(
    choice: EngineChoice, options: CurrentOptions, position: LoaderPosition, timing: Timing
) -> WorkerEngine:
    """Build workers that share batches of rows of a known size."""
    native = options.native
    assert choice.rows is not None
    source: Source = choice.rows
    if options.worker_init_fn is not None:
        shown = options.dataset if isinstance(options.dataset, Subset) else source
        init = WorkerInit(shown, options.worker_init_fn, options.seed or 0)
        source = SourceWithInit(source, init)
    count = slots_for(options.allocated_prefetch)
    pool = start_pool(
        source,
        slots_bytes=count * choice.slot_bytes,
        workers=options.workers,
        method=options.start_method,
        runs_user_code=choice.runs_user_code or _needs_formats_of_the_script(choice),
    )
    with _close_on_error(pool):
        slots = RowBuffers(pool.block, choice.slot_bytes, count)
        feed = Feed(
            RowTasks(slots, source.fields),
            pool,
            LiveSettings(
                workers=options.workers,
                prefetch=options.prefetch,
                task_ns=options.task_ns,
            ),
            timeout_s=options.timeout_s,
            ahead=options.workers > 0,
            sample=partial(describe_row, source),
        )
        # torch's default collate makes lists of tuples.
        form: Callable[[Tensors], Any] = tuple if native else list
        transfer: DeviceTransfer
        if options.device is not None and options.device.type != "cpu":
            assert choice.on_device is not None, "device transforms are set for batches on a device"
            transfer = AcceleratorTransfer(
                slots,
                choice.on_device,
                TorchAccelerator(options.device),
                partial(register_memory, pool.block, options.device),
                form,
            )
        else:
            transfer = HostTransfer(slots, choice.on_device, form, should_pin(options.pin))
        transfer.timing = timing
        policy = partial(samples_to_skip, source, slots, options.on_error)
        return WorkerEngine(feed, transfer, position, policy, skip_after_error=not native)


def _needs_formats_of_the_script(choice: EngineChoice) -> bool:
    """Return True if workers read images with formats that were added to Pillow."""
    if choice.engine not in ("rows", "samples"):
        return False
    from feedline.recognition.pillow_reading import has_added_formats

    return has_added_formats()


def _build_batch_engine(
    fetcher: DatasetFetcher,
    choice: EngineChoice,
    options: CurrentOptions,
    position: LoaderPosition,
    timing: Timing,
) -> WorkerEngine:
    """Build workers that make whole batches, one each."""
    pool = start_pool(
        fetcher,
        slots_bytes=0,
        workers=options.workers,
        method=options.start_method,
        # Of samples and collate_fn, what is pickled says.
        runs_user_code=choice.engine == "dataset" or _needs_formats_of_the_script(choice),
    )
    with _close_on_error(pool):
        slots = WholeBatchBuffers(0)
        tasks = BatchTasks(slots, held=_KEPT_BY_USER, shares_memory=pool.shares_memory)
        live = LiveSettings(
            workers=options.workers,
            prefetch_factor=options.prefetch_factor,
            ahead=options.ahead,
        )
        tasks.resize(live)
        feed = Feed(
            tasks,
            pool,
            live,
            timeout_s=options.timeout_s,
            in_order=options.in_order,
            replaces=False,  # a user's sample may take as long as it likes
            sample=partial(describe_sample, options.dataset),
        )
        transfer = WholeBatchTransfer(slots, spare=_KEPT_BY_USER, pin=options.pin)
        transfer.timing = timing
        return WorkerEngine(feed, transfer, position, lambda flight: [])


def _build_in_process_engine(
    fetcher: DatasetFetcher,
    choice: EngineChoice,
    options: CurrentOptions,
    position: LoaderPosition,
    timing: Timing,
) -> InProcessEngine:
    """Build an engine that makes batches in this process on request."""
    pinned = should_pin(options.pin)

    def make(batch: BatchSpec) -> Any:
        made = None
        if choice.engine == "tensors":
            # Looked at for each batch: in this process a change shows at once, as torch's does.
            found = batched_tensors(options.dataset, options.collate_fn, options.max_rows)
            with contextlib.suppress(Exception):  # samples have to be asked for, or say more
                made = found.gather and found.gather(batch.dataset_keys)
        if made is None:
            made = fetcher.make_here(batch)
        return pin_memory(made) if pinned else made

    return InProcessEngine(make, position, timing)
