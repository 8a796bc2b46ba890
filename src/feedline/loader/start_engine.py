"""Start of the chosen engine: worker pool, buffers, feed and device transfer.

For rows that could not be made, `samples_to_skip` implements `on_error`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from torch.utils.data import Subset, default_collate

from feedline.engine.buffers import BatchBuffers, RowBuffers, WholeBatchBuffers
from feedline.engine.dataset_fetch import DatasetFetcher, SourceWithInit, WorkerInit
from feedline.engine.defaults import LiveSettings, slots_for
from feedline.engine.device_transfer import (
    AcceleratorTransfer,
    DeviceTransfer,
    HostTransfer,
    Tensors,
    WholeBatchTransfer,
)
from feedline.engine.devices import TorchAccelerator, pin_batch, register_memory, should_pin
from feedline.engine.feed import Feed
from feedline.engine.load_samples import Source
from feedline.engine.messages import HUNG, SkippedSample
from feedline.engine.pool import WorkerPool
from feedline.engine.start_pool import start_pool
from feedline.engine.tasks import BatchTasks, InFlightBatch, RowTasks
from feedline.engine.tensor_dataset import batched_tensors
from feedline.engine.worker_errors import describe_sample
from feedline.errors import ImageError, SampleError, StorageError
from feedline.images.native import warn_if_missing
from feedline.loader.engine_choice import EngineChoice, keeps_workers
from feedline.loader.engines import Engine, EngineRecord, InProcessEngine, WorkerEngine
from feedline.loader.iterable_engine import IterableEngine, IterablePosition
from feedline.loader.options import Options
from feedline.loader.position import LoaderPosition
from feedline.order.batch_spec import BatchSpec

_MAX_USER_BATCHES = 2
"""Batches a user may hold without a copy, besides those made ahead."""


def samples_to_skip(
    source: Source, slots: BatchBuffers, on_error: str, in_flight: InFlightBatch
) -> list[SkippedSample]:
    """Samples to skip in a batch with failed rows; or release the slot and raise a SampleError."""
    failures = sorted(in_flight.failures, key=lambda failure: failure.row)
    batch = in_flight.batch
    from_storage = [failure for failure in failures if failure.is_storage]
    if on_error == "skip" and not from_storage:
        return [
            SkippedSample(
                failure.row,
                _name(source, int(batch.samples[failure.row])),
                f"{failure.kind}: {failure.message}" + f" ({failure.hint})" * failure.is_code_error,
                failure.is_code_error,
            )
            for failure in failures
        ]
    slots.release(in_flight.slot)
    first = (from_storage or failures)[0]
    sample = int(batch.samples[first.row])
    name = _name(source, sample)
    text = first.message if name in first.message else f"{name}: {first.message}"
    is_unreadable = first.kind == ImageError.__name__
    is_complete = is_unreadable or first.kind == StorageError.__name__  # its message
    if not is_complete:
        text = f"sample {sample}, {first.kind}: {text}"
    text += f" (epoch {batch.epoch + 1}, step {batch.step + 1})"
    hint, fix = "repair or remove it, or skip such samples", {"on_error": "skip"}
    if first.kind == HUNG:
        text += ". Its storage may be unavailable, or the code that loads it hangs"
        hint = "wait longer with timeout=, or skip such samples"
    if first.hint:
        hint, fix = first.hint, {}
    if first.is_storage and not first.hint:
        hint, fix = "the storage failed, and the file may be intact: check disk and network", {}
    if is_unreadable:
        raise ImageError(text, hint=hint, fix=fix)
    if first.is_storage:
        raise StorageError(text, hint=hint, fix=fix)
    raise SampleError(f"{text}\n{first.trace}".rstrip(), hint=hint, fix=fix)


def describe_row(source: Source, batch: BatchSpec, row: int) -> tuple[int, str]:
    """Sample index of a row, and a description with the sample's name."""
    sample = int(batch.samples[row])
    return sample, f"sample {sample}, {_name(source, sample)}"


def _name(source: Source, sample: int) -> str:
    try:
        return source.name(sample)
    except IndexError:
        return f"the dataset has {len(source)} samples"


def start_engine(
    choice: EngineChoice, options: Options, position: LoaderPosition, record: EngineRecord
) -> Engine:
    """Build the chosen engine at the position; raises UsageError or ResourceError."""
    if choice.source is not None:
        warn_if_missing()
    if choice.engine == "iterable":
        return IterableEngine(cast(IterablePosition, position))
    fetcher = None if choice.makes_rows else _fetcher(choice, options, position.seed)
    if fetcher is not None and (options.num_workers == 0 or choice.engine == "tensors"):
        return InProcessEngine(_batch_maker(fetcher, choice, options), position, record)
    with contextlib.ExitStack() as cleanup:

        def start(work: Source | DatasetFetcher, slots_bytes: int) -> WorkerPool:
            pool = start_pool(
                work,
                slots_bytes=slots_bytes,
                workers=options.num_workers,
                method=options.start_method,
                # If the sample engine needs the script (e.g. for collate_fn), `Payload` detects
                # that while pickling.
                runs_user_code=(choice.runs_user_code and choice.engine != "samples")
                or _needs_formats_of_the_script(choice),
                is_for_epoch=not keeps_workers(options, choice),
            )
            cleanup.callback(pool.close)
            return pool

        if fetcher is None:
            engine = _row_engine(start, choice, options, position, record)
        else:
            engine = _batch_engine(start, fetcher, options, position, record)
        cleanup.pop_all()  # from here on the engine closes its pool
        cleanup.callback(engine.close)
        engine.restart_prefetch()
        cleanup.pop_all()
    return engine


def _needs_formats_of_the_script(choice: EngineChoice) -> bool:
    """Return True if workers read images with formats that were added to Pillow."""
    if not choice.compiled:
        return False
    from feedline.images.pillow_codecs import has_added_formats

    return has_added_formats()


def _row_engine(
    start: Callable[[Source, int], WorkerPool],
    choice: EngineChoice,
    options: Options,
    position: LoaderPosition,
    record: EngineRecord,
) -> WorkerEngine:
    """Build workers that share batches of rows of a known size."""
    source: Source = choice.source
    if options.worker_init_fn is not None:
        shown = options.dataset if isinstance(options.dataset, Subset) else source
        init = WorkerInit(shown, options.worker_init_fn, options.seed or 0)
        source = SourceWithInit(source, init)
    count = slots_for(options.allocated_prefetch)
    pool = start(source, count * choice.slot_bytes)
    slots = RowBuffers(pool.block, choice.slot_bytes, count)
    feed = Feed(
        RowTasks(slots, source.fields),
        pool,
        LiveSettings(
            workers=options.num_workers, prefetch=options.prefetch, task_ns=options.task_ns
        ),
        timeout_s=options.timeout,
        prefetches=options.num_workers > 0,
        describe_sample=partial(describe_row, source),
    )
    # torch's default collate makes lists of tuples; timm's makes tuples.
    is_list = not options.is_row_source and options.collate_fn is default_collate
    form: Callable[[Tensors], Any] = list if is_list else tuple
    transfer: DeviceTransfer
    if options.device is not None and options.device.type != "cpu":
        assert choice.device_transforms is not None, "set for batches on a device"
        transfer = AcceleratorTransfer(
            slots,
            choice.device_transforms,
            TorchAccelerator(options.device),
            partial(register_memory, pool.block, options.device),
            form,
        )
    else:
        transfer = HostTransfer(
            slots, choice.device_transforms, form, should_pin(options.pin_memory)
        )
    policy = partial(samples_to_skip, source, slots, options.on_error)
    return WorkerEngine(feed, transfer, position, record, policy, skip_after_error=choice.compiled)


def _fetcher(choice: EngineChoice, options: Options, seed: int) -> DatasetFetcher:
    """Maker of whole batches, from an epoch's seed."""
    assert options.collate_fn is not None, "torch's constructor sets a default"
    seed &= (1 << 63) - 1  # like torch's seeds
    return DatasetFetcher(
        WorkerInit(options.dataset, options.worker_init_fn, seed),
        options.collate_fn,
        batched=options.batched,
        skip_errors=options.on_error == "skip",
        samples=choice.source,
        fuses_nested=choice.fuses_nested,
        is_updatable=choice.engine == "dataset" and keeps_workers(options, choice),
    )


def _batch_engine(
    start: Callable[[DatasetFetcher, int], WorkerPool],
    fetcher: DatasetFetcher,
    options: Options,
    position: LoaderPosition,
    record: EngineRecord,
) -> WorkerEngine:
    """Build workers that make whole batches, one each."""
    pool, slots = start(fetcher, 0), WholeBatchBuffers(0)
    skips_failures = options.on_error == "skip"
    tasks = BatchTasks(slots, max_user_batches=_MAX_USER_BATCHES, skips_failures=skips_failures)
    live = LiveSettings(
        workers=options.num_workers,
        prefetch_factor=options.prefetch_factor,
        min_prefetched_batches=options.min_prefetched_batches,
    )
    feed = Feed(
        tasks,
        pool,
        live,
        timeout_s=options.timeout,
        in_order=options.in_order,
        replaces_hung_workers=False,  # a user's sample may take any time
        describe_sample=partial(describe_sample, options.dataset),
    )
    transfer = WholeBatchTransfer(slots, max_user_batches=_MAX_USER_BATCHES, pin=options.pin_memory)
    return WorkerEngine(feed, transfer, position, record)


def _batch_maker(
    fetcher: DatasetFetcher, choice: EngineChoice, options: Options
) -> Callable[[BatchSpec], Any]:
    is_pinned = should_pin(options.pin_memory)
    if choice.engine != "tensors" and not is_pinned:
        return fetcher.fetch_in_process

    def make(batch: BatchSpec) -> Any:
        data = None
        if choice.engine == "tensors":
            # Inspected for each batch: in this process a change takes effect at once, as in torch.
            tensors = batched_tensors(options.dataset, options.collate_fn, options.max_rows)
            with contextlib.suppress(Exception):  # `fetch_in_process` raises a better error
                data = tensors.gather and tensors.gather(batch.dataset_keys)
        if data is None:
            data = fetcher.fetch_in_process(batch)
        return pin_batch(data) if is_pinned else data

    return make
