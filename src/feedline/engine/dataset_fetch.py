"""Fetching and collating of whole batches of any torch Dataset, in a worker.

Guarantees: the result of a torch worker for the same keys: `__getitems__` if it exists,
`collate_fn`, `worker_init_fn`, `get_worker_info()`. An exception in the dataset reaches the trainer
with its type, its traceback and the sample's index. All random states are seeded per batch,
overriding seeds set in `worker_init_fn`, because any worker may load any batch. Compiled datasets
use the same per-sample seeds as the image-row engine, so the pixels are equal. A batch that ignores
the requested size or strength raises an error. Tensors are stacked directly into the batch's memory
by torch's `default_collate`; functions users have registered in `default_collate_fn_map` are
called.
Relies on: use in one process, from its main thread.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import default_collate

from feedline.engine.attribute_changes import InitialAttributes, apply_changes
from feedline.engine.attribute_snapshot import AttributeSnapshot
from feedline.engine.attribute_walk import walk
from feedline.engine.batch_layout import empty_in, is_plain, write_batch
from feedline.engine.buffers import BatchAllocator
from feedline.engine.generators import (
    MAX_DEPTH,
    DatasetGenerator,
    find_generators,
    seed_generators,
    seed_generators_temporarily,
)
from feedline.engine.load_samples import Source
from feedline.engine.messages import BatchTask, SkippedSample, error_message
from feedline.engine.transform_errors import describe_code_error
from feedline.engine.worker_errors import (
    SkippedBatch,
    WorkerException,
    note_failing_sample,
    note_unpicklable,
)
from feedline.errors import UsageError, note
from feedline.order.batch_spec import BatchSpec, Item
from feedline.order.requested_size import SampleRequest, current_request, set_request
from feedline.order.seeds import mix, row_seed
from feedline.private_names import find_private
from feedline.randomness import (
    UpcomingStates,
    fingerprint,
    restore_states,
    seed_all,
    seeded,
    seeding_depth,
)
from feedline.sources.files import is_storage_failure
from feedline.system import find_attribute
from feedline.timing import is_recording_enabled
from feedline.timing.stage_timer import stage_timer
from feedline.timing.torch_workers import time_transforms

if TYPE_CHECKING:
    from feedline.images.compile.nested import NestedPipelines
    from feedline.images.compile.pipeline import SamplePipeline

_log = logging.getLogger("feedline")

_torch_collate = find_private("torch.utils.data._utils.collate")
_torch_worker = find_private("torch.utils.data._utils.worker")

OnSample: TypeAlias = Callable[[int], None]
"""Called with the position of the next sample within its batch."""


@dataclass(frozen=True)
class WorkerInit:
    """Initialisation of a worker like torch's: worker info, random states, `worker_init_fn`."""

    dataset: Any  # the user's, as in `get_worker_info()`
    worker_init_fn: Callable[[int], None] | None
    seed: int  # worker n is seeded with seed + n
    lazy_images: bool = field(default=False, init=False)  # of the process that pickled this object

    def __getstate__(self) -> dict[str, Any]:
        images = sys.modules.get("feedline.images.lazy_images")
        is_lazy = images is not None and images.are_images_lazy()
        return {**vars(self), "lazy_images": is_lazy}

    def user_objects(self) -> dict[str, object]:
        """The user's objects, by the names of the loader's arguments."""
        return {"dataset": self.dataset, "worker_init_fn": self.worker_init_fn}

    def initialise(self, worker: int, workers: int) -> None:
        """Make this process a worker for the user's code."""
        seed = self.seed + worker
        _torch_worker._worker_info = _torch_worker.WorkerInfo(
            id=worker, num_workers=workers, seed=seed, dataset=self.dataset
        )
        seed_all(seed)
        if self.lazy_images:
            from feedline.images.lazy_images import lazy_images  # imports Pillow

            lazy_images()


def find_nested(dataset: object, collate_fn: object) -> NestedPipelines:
    """Find the pipelines that can be fused in a dataset and a `collate_fn`. No user code runs."""
    from feedline.images.compile.nested import NestedPipelines  # loads decoders

    nested = NestedPipelines()
    roots = ("dataset", dataset), ("collate_fn", collate_fn)
    for path, thing in walk(
        *roots, is_leaf=nested.is_leaf, max_depth=MAX_DEPTH, named_globals=True
    ):
        nested.add(path, thing)
    return nested


class SourceWithInit:
    """Source of rows whose workers call `worker_init_fn` when they start."""

    def __init__(self, rows: Source, init: WorkerInit) -> None:
        self._rows = rows
        self._init = init
        self.fields, self.load = rows.fields, rows.load
        self.name, self.fingerprint = rows.name, rows.fingerprint
        self.prepare = getattr(rows, "prepare", None)
        self.load_rows = getattr(rows, "load_rows", None)

    def user_objects(self) -> dict[str, object]:
        """The user's objects, by the names of the loader's arguments."""
        return self._init.user_objects()

    def open(self, worker: int, workers: int) -> None:
        """Initialise a worker, and open the rows, which `worker_init_fn` may change."""
        self._init.initialise(worker, workers)
        if self._init.worker_init_fn is not None:
            self._init.worker_init_fn(worker)
        if (open_rows := getattr(self._rows, "open", None)) is not None:
            open_rows(worker, workers)

    def __len__(self) -> int:
        return len(self._rows)


class _BatchSeeds:
    """Seeds and random states of batches; those of the following steps are computed together."""

    def __init__(self) -> None:
        self._upcoming = UpcomingStates()
        self._first: tuple[int, int, int] | None = None  # epoch seed, rank and step
        self._seeds: list[tuple[int, tuple[memoryview, memoryview]]] = []

    def find(self, batch: BatchSpec) -> tuple[int, tuple[memoryview, memoryview] | None]:
        """Seed of a batch, and the states for it, if they were computed."""
        size = self._upcoming.size
        if not size:
            return batch.batch_seed, None
        if self._first is not None:
            epoch_seed, rank, step = self._first
            index = batch.step - step
            if 0 <= index < size and batch.epoch_seed == epoch_seed and batch.rank == rank:
                return self._seeds[index]
        self._first, seeds = None, batch.batch_seeds(size)
        self._upcoming.compute(seeds)
        self._seeds = list(zip(seeds, self._upcoming.states, strict=True))
        # Last, because Ctrl-C must not leave the states of other batches.
        self._first = batch.epoch_seed, batch.rank, batch.step
        return self._seeds[0]


class DatasetFetcher:
    """Makes batches of a Dataset: anything with `__getitem__`.

    If `batched`, keys are lists of sample keys; otherwise one key is fetched and collated. With
    `skip_errors`, samples that raise are left out; if none is left, there is no batch. `samples` is
    a compiled replacement of the dataset, used unless `worker_init_fn` sets attributes of the
    dataset. If `is_updatable`, a running worker can get changed attributes, and keeps the dataset's
    initial ones. If `fuses_nested`, pipelines within the dataset are fused where batches are made.
    """

    def __init__(
        self,
        init: WorkerInit,
        collate_fn: Callable[[Any], Any],
        *,
        batched: bool,
        skip_errors: bool = False,
        samples: SamplePipeline | None = None,
        is_updatable: bool = False,
        fuses_nested: bool = False,
    ) -> None:
        self.dataset = init.dataset
        self._collate = collate_fn
        self._batched = batched
        self._init = init
        self._skip = skip_errors
        self._compiled = samples
        self._generators: list[DatasetGenerator] | None = None  # not searched yet
        self._worker: int | None = None
        self._init_error: WorkerException | None = None
        self._is_updatable = is_updatable
        self._fuses_nested = fuses_nested
        self._nested: NestedPipelines | None = None  # not searched yet
        self._changes = b""  # of the dataset, applied last
        self._initial: InitialAttributes | None = None  # set by `open`, if updatable
        self._seeds: _BatchSeeds | None = None  # of the first batch in this process

    def user_objects(self) -> dict[str, object]:
        """The user's objects, by the names of the loader's arguments."""
        return {**self._init.user_objects(), "collate_fn": self._collate}

    def open(self, worker: int, workers: int) -> None:
        """Initialise this worker, like torch's workers."""
        self._worker = worker
        if is_recording_enabled():
            time_transforms()
        self._init.initialise(worker, workers)
        before = fingerprint()
        try:
            snapshot = None if self._compiled is None else AttributeSnapshot(self.dataset)
            if self._init.worker_init_fn is not None:
                self._init.worker_init_fn(worker)
            if snapshot is not None and snapshot != AttributeSnapshot(
                self.dataset, before=snapshot
            ):
                self._compiled = None
            if worker == 0 and fingerprint() != before:
                _log.info(
                    "worker_init_fn seeds random states; feedline seeds them again for each batch. "
                    "For repeatable runs use torch.manual_seed(...), generator= or seed="
                )
            self._find_generators()
            if self._is_updatable:
                self._initial = InitialAttributes(self.dataset)
            self._fuse_in_worker()
        except (Exception, SystemExit) as error:
            self._init_error = WorkerException.of(error, worker)

    def _fuse_in_worker(self) -> None:
        """Fuse the pipelines within the dataset, in their current state."""
        if self._nested is not None:
            self._nested.uninstall()
        if self._fuses_nested:
            self._nested = find_nested(self.dataset, self._collate)
            self._nested.install()

    def _find_generators(self) -> list[DatasetGenerator]:
        """Find the generators to seed for each batch, once."""
        if self._generators is None:
            self._generators = find_generators(self.dataset, self._collate)
        return self._generators

    def fetch_into(self, task: BatchTask, space: BatchAllocator, on_sample: OnSample) -> int:
        """Make a batch, or catch its exception, and write it to memory."""
        if self._init_error is not None:
            return write_batch(self._init_error, space)
        try:
            if task.dataset_changes != self._changes:
                assert self._initial is not None, "only updatable workers get changes"
                apply_changes(self.dataset, pickle.loads(task.dataset_changes), self._initial)
                self._changes = task.dataset_changes
                self._fuse_in_worker()
            seed_all(task.seed)
            seed_generators(self._find_generators(), task.seed)
            batch = self._make(pickle.loads(task.keys), task, space, on_sample)
            try:
                return write_batch(batch, space)
            except Exception as error:
                note_unpicklable(error, batch.batch if isinstance(batch, SkippedBatch) else batch)
                raise
        except (Exception, SystemExit) as error:
            return write_batch(WorkerException.of(error, self._worker), space)

    def fetch_in_process(self, batch: BatchSpec) -> Any:
        """Make a batch in the training process, equal to a worker's. Errors are raised unchanged.

        All random states, including the dataset's own, and the current request are restored
        afterwards, also after Ctrl-C.
        """
        if self._seeds is None:
            self._seeds = _BatchSeeds()
        seed, states = self._seeds.find(batch)
        task = BatchTask.for_batch(batch, seed)
        request, depth = current_request(), seeding_depth()
        try:
            with seeded(seed, states=states):
                if generators := self._find_generators():
                    seed_generators_temporarily(generators, seed)
                if self._fuses_nested and self._nested is None:
                    self._nested = find_nested(self.dataset, self._collate)
                if self._nested is None:
                    return self._make(batch.dataset_keys, task, None, None)
                with self._nested.installed():
                    return self._make(batch.dataset_keys, task, None, None)
        except BaseException:  # Ctrl-C may have come in an `__exit__`, which then restored nothing
            restore_states(depth)
            set_request(request)
            raise

    def _make(
        self, keys: Any, task: BatchTask, space: BatchAllocator | None, on_sample: OnSample | None
    ) -> Any:
        """Make a batch. With `space` and `default_collate`, stack tensors directly into it."""
        with SampleRequest(task.image_size, task.strength) as request:
            if not self._batched:
                keys = [keys]
            make_sample = None
            if self._compiled is not None:
                make_sample = _sample_function(self._compiled, self.dataset, keys, task, request)
            samples, kept, skipped = self._samples(keys, make_sample, task.skipped_rows, on_sample)
            if skipped and not kept:
                return SkippedBatch(None, tuple(skipped), is_empty=True)
            if self._batched:
                batch = self._collated(samples, kept, space)
                if stage_timer.timed:
                    stage_timer.end_stage("collate")
            else:
                batch = self._collate(samples[0])
        if request.image_size is not None or request.strength != 1:
            _check_request(request, self.dataset)
        return SkippedBatch(batch, tuple(skipped)) if skipped else batch

    def _collated(self, samples: Any, keys: Any, space: BatchAllocator | None) -> Any:
        try:
            if space is not None and self._collate is default_collate:
                return collate_into(samples, space)
            return self._collate(samples)
        except Exception as error:
            if isinstance(samples, Sequence) and samples:
                _note_odd_sample(error, samples, keys)
            raise

    def _samples(
        self,
        keys: Any,
        make_sample: SampleFunction | None,
        skipped_rows: Sequence[tuple[int, str]],
        on_sample: OnSample | None,
    ) -> tuple[Any, Any, Sequence[SkippedSample]]:
        """Make the samples of a batch, without `skipped_rows`, which have reasons.

        Return the samples, their keys, and the skipped samples.
        """
        dataset, times_each_sample, skip = self.dataset, stage_timer.each_sample, self._skip
        if make_sample is None and not skip and self._batched:
            if getitems := find_attribute(dataset, "__getitems__"):
                if on_sample is not None:
                    on_sample(0)
                fetched = getitems(keys)
                stage_timer.end_stage("dataset")
                return fetched, keys, ()
            if on_sample is None and not times_each_sample:
                upcoming = iter(keys)
                try:
                    # The quickest loop there is: tiny samples feel it.
                    return [dataset[key] for key in upcoming], keys, ()
                except (Exception, SystemExit) as error:
                    key = keys[len(keys) - length_hint(upcoming) - 1]
                    note_failing_sample(error, dataset, key)
                    raise
        samples: list[Any] = []
        kept: list[Any] = []
        skipped: list[SkippedSample] = []
        reasons = dict(skipped_rows)
        for k, key in enumerate(keys):
            if k in reasons:
                skipped.append(SkippedSample(k, repr(key), reasons[k]))
                continue
            if on_sample is not None:
                on_sample(k)
            try:
                samples.append(dataset[key] if make_sample is None else make_sample(k, key))
            except (Exception, SystemExit) as error:
                note_failing_sample(error, dataset, key)
                if not skip or not isinstance(error, Exception) or is_storage_failure(error):
                    raise
                reason = f"{type(error).__name__}: {error_message(error)}"
                if cause := describe_code_error(error):
                    reason += f" ({cause})"
                skipped.append(SkippedSample(k, repr(key), reason, bool(cause)))
                continue
            kept.append(key)
            if times_each_sample:
                stage_timer.end_sample(key, "dataset")
        return samples, kept if skipped else keys, skipped


SampleFunction: TypeAlias = Callable[[int, Any], Any]
"""Function from a sample's row in its batch, and its key, to the sample."""


def _sample_function(
    samples: SamplePipeline, dataset: Any, keys: Any, task: BatchTask, request: SampleRequest
) -> SampleFunction:
    """Create the function that makes a batch's samples; the dataset makes those without index."""
    seed = mix(task.row_seed)
    with contextlib.suppress(Exception):
        numbers = [number for number in map(_sample_index, keys) if number is not None]
        samples.prepare(numbers, task.image_size)
    stage_timer.begin_samples("fetch")

    def make_sample(row: int, key: Any) -> Any:
        number = _sample_index(key)
        if number is None:
            return dataset[key]
        request.image_size_was_read = request.strength_was_read = True
        own_seed = row_seed(seed, number, row, task.first_position, task.stride)
        return samples.sample(Item(number, task.image_size, own_seed, task.strength))

    return make_sample


def _sample_index(key: Any) -> int | None:
    """Sample index of a key; None for any other key."""
    if type(key) is int or isinstance(key, np.integer):
        return int(key)
    number = key.item() if isinstance(key, torch.Tensor) and key.dim() == 0 else None
    return number if type(number) is int else None


def _check_request(request: SampleRequest, dataset: object) -> None:
    """Raise UsageError if a size or a strength was requested, and nothing read it."""
    kind = type(dataset).__name__
    if request.image_size is not None and not request.image_size_was_read:
        raise UsageError(
            f"schedule= or image_size= is set, but nothing in {kind} asked for the size: the batch "
            f"might not be at {request.image_size} px. Use feedline.per_size(...) or "
            "feedline.image_size() in the transform, or leave the size out of the schedule"
        )
    if request.strength != 1 and not request.strength_was_read:
        raise UsageError(
            f"the schedule sets strength {request.strength:g}, but nothing in {kind} asked for it: "
            "the augmentation would have full strength. Use feedline.augmentation_strength() in "
            "the transform, or leave the strength out of the schedule"
        )


def collate_into(samples: Sequence[Any], space: BatchAllocator) -> Any:
    """Collate samples like `torch.utils.data.default_collate`, tensors into memory."""

    def stack(tensors: Sequence[torch.Tensor], **options: Any) -> torch.Tensor:
        # Only the first is checked, as by torch's workers: if another one does not match, stacking
        # into memory for the first one's dtype raises an error.
        first = tensors[0]
        if type(first) is not torch.Tensor or not is_plain(first):
            stacked: torch.Tensor = collate_tensors(tensors, **options)
            return stacked
        out = empty_in(space, (len(tensors), *first.shape), first.dtype)
        return torch.stack(list(tensors), 0, out=out)

    functions = dict(_torch_collate.default_collate_fn_map)
    collate_tensors = functions[torch.Tensor]
    if collate_tensors is _torch_collate.collate_tensor_fn:  # else it is a user's own
        functions[torch.Tensor] = stack
    return _torch_collate.collate(samples, collate_fn_map=functions)


def _note_odd_sample(error: Exception, samples: Sequence[Any], keys: Any) -> None:
    """Note the first sample that differs from sample 0 in structure or shape, or holds None."""
    with contextlib.suppress(Exception):  # a sample's attributes may raise anything
        first = _describe_structure(samples[0])
        for k, sample in enumerate(samples):
            if (structure := _describe_structure(sample)) != first:
                text = f"Sample {keys[k]!r} is {structure}, but the first sample is {first} "
                note(error, f"{text}(sample {keys[0]!r}).")
                return
        if "NoneType" in first:
            text = f"Sample {keys[0]!r} contains None. Check that every transform returns a value."
            note(error, text)


def _describe_structure(value: Any, depth: int = 0) -> str:
    """Structure and shapes of a value as text, e.g. (float32 [3, 224, 224], int)."""
    shape = getattr(value, "shape", None)
    if shape is not None and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(shape)}"
    if depth < 3 and isinstance(value, dict):
        inner = ", ".join(
            f"{key!r}: {_describe_structure(part, depth + 1)}" for key, part in value.items()
        )
        return "{" + inner + "}"
    if depth < 3 and isinstance(value, (tuple, list)) and len(value) <= 16:
        return "(" + ", ".join(_describe_structure(part, depth + 1) for part in value) + ")"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__
