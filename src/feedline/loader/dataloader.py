"""DataLoader: a torch DataLoader with feedline's engine.

Guarantees: batches come in the specified order and at the specified sizes, exact to the batch, on
any number of workers; `state_dict` names the next batch at any moment. A copy, or an unpickled
loader, is built from the same arguments: it begins at the start, and shares no workers.
Relies on: use in the process that built it; iterations may run in several threads, but settings are
changed in one; `epoch_iterator` for the work.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Sampler

from feedline.engine.load_samples import Source
from feedline.engine.normalise import BatchTransform, PixelTransform
from feedline.engine.start_pool import unpickling_arguments
from feedline.errors import UsageError
from feedline.loader.dataset_kind import is_row_source
from feedline.loader.epoch_iterator import LIVE_ATTRIBUTES, EpochIterator, LoaderRuntime, uncompiled
from feedline.loader.explain import explain
from feedline.loader.options import (
    Arguments,
    Options,
    check_argument,
    create_order,
    suggest_close_names,
)
from feedline.loader.saved_settings import add_saved_settings, name_file_in_errors, warn_if_unused
from feedline.loader.torch_samplers import (
    PlannedSampler,
    PublicBatchSampler,
    sampler_rank_and_world_size,
    warn_of_stock_loader,
)
from feedline.order.batch_spec import BatchSpec
from feedline.order.sample_order import Order
from feedline.order.schedule import Phase, Schedule
from feedline.throughput.controller import SettingChange
from feedline.timing.recorder import Recorder
from feedline.timing.run import Run
from feedline.timing.steps import StepTimer

_T = TypeVar("_T", covariant=True)
_NOT_COPIED = {"end_of_dataloader", "remainder", "_watch_iterator", "_warns_of_stock_loader"}
"""Attributes that a copy does not get."""
_FIXED = (
    *("seed", "schedule", "weights", "replacement", "image_size", "max_image_size", "device"),
    *("dtype", "mean", "std", "pixel_transform", "batch_transform", "cache", "rank", "world_size"),
)
"""Attributes that have no effect after construction."""
_USER_VALUES = (*_FIXED, "prefetch", "task_ms", "on_error", "start_method")
"""Attributes with the user's values, from which frameworks rebuild the loader."""
_RECORDED_ARGUMENTS = "__pl_saved"
"""Prefix of attributes in which Lightning stores the arguments of a constructor that is called in a
hook, and from which it rebuilds the loader. If this class is first imported in the hook, these are
torch's arguments, without feedline's; without them Lightning reads the loader's attributes."""
_READ_LATER = (
    *("collate_fn", "worker_init_fn", "generator", "timeout", "pin_memory", "on_error", "in_order"),
    *("start_method", "multiprocessing_context"),
)
"""Attributes whose current values a copy gets, because each `iter()` reads them."""
_TORCH_ARGUMENTS = (
    *("sampler", "batch_sampler", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
    *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
    "pin_memory_device",
    # torch has it from 2.6 on.
    *({"in_order"} & signature(TorchDataLoader.__init__).parameters.keys()),
)
"""Arguments that torch's constructor gets unchanged, unless feedline plans the order."""


class DataLoader(TorchDataLoader[_T]):
    """Data loader whose workers start once and live through epochs and changes of image size.

    Accepts every argument of torch.utils.data.DataLoader, in its order and with its meaning, and
    any Dataset. Arguments after `in_order` are feedline's own. Each `iter()` is one epoch.

    feedline sources (`ImageFolder`, `ImageList`, `ImageArray`) give batches (images, labels).
    Images have shape (N, 3, H, W), channels_last in memory: uint8 on the CPU, or with `device`
    normalised, of `dtype`, on that device; a source's `mode` or array may set other channels and
    dtypes. Labels are int64, shape (N,). Any other Dataset gives the same batches as torch's
    DataLoader.

    A copy of a loader, or an unpickled one, is a new loader with the same arguments at the
    beginning; `load_state_dict(loader.state_dict())` moves it to this loader's position.

    Args:
        dataset: dataset to load from.
        batch_size: samples per batch on each rank; phases of the schedule override it. None: no
            batching.
        shuffle: reshuffle every epoch. Default: False, with a schedule True. "window:16384", with a
            seed or a schedule, shuffles within windows, for disks that seek slowly; a folder sorted
            by class then gives batches of few classes. See docs/explanation/determinism.md.
        sampler, batch_sampler: as in torch.
        num_workers: number of worker processes; 0 loads in this process. "auto" starts with the
            cores available to this process and adapts to the training, see `adapts`. Default: 0,
            with a schedule "auto". The attribute can be set at any time; a change from 0 or to 0
            takes effect in the next iteration.
        collate_fn, pin_memory: as in torch.
        drop_last: drop an epoch's last batch if it is not full.
        timeout: seconds to wait while no worker finishes a batch (if workers share batches: a row),
            then a LoadTimeoutError, which is a RuntimeError. 0: no limit, and a warning after
            120 s. If workers share batches, a worker that hangs on one row while the others make
            progress, and does not read from storage, is replaced after `timeout` seconds (after
            120 s if `timeout` is 0); a sample that hangs twice raises an error. Only with workers.
        worker_init_fn: as in torch.
        multiprocessing_context: start method, as in torch; or see `start_method`.
        generator: as in torch.
        prefetch_factor: batches each worker makes ahead (default 2), as in torch; or see
            `prefetch`. The attribute can be set at any time: if increased, more batches are started
            at once; if decreased, batches in flight are delivered first. With an IterableDataset it
            takes effect in the next iteration.
        persistent_workers: keep the workers from epoch to epoch. Otherwise they end with the epoch,
            and the next epoch sees every change of the dataset. Workers are always kept with a
            schedule, and if none of your code runs in them. At the next `iter()`, running workers
            get changed attributes of an own Dataset that are numbers, text or small containers of
            them. After another change that feedline detects (an attribute was set, or a tensor or a
            short list was changed in place) they restart; after any other change call `refresh`.
        pin_memory_device: as in torch, which ignores it.
        in_order: as in torch. With a seed or a schedule, batches always come in order.
        seed: seed of order and randomness: the same batches on any number of workers, exact resume
            over all epochs, and, with kept workers, prefetching across epochs. Default: drawn from
            `generator` or torch's random state at each epoch, as in torch, and mixed with numpy's
            and Python's states if you seeded these; with a schedule 0, and the global random state
            is never touched.
        schedule: phases of image size, as text ("112x10@512,160x10"), a Schedule or Phases. Epochs
            after its end continue its last phase. Default: `image_size` throughout.
        weights: sampling weights, one number of at least 0 per sample, copied; with a seed or a
            schedule. Each epoch has as many samples as the dataset, drawn at random as by torch's
            WeightedRandomSampler, and they are divided among the ranks.
        replacement: with `weights`, draw with replacement. False draws each sample once, samples of
            high weight early, and needs all weights above 0.
        image_size: side of the images in pixels, without a schedule. feedline sources need
            one of the two. Compiled torchvision pipelines follow it; any other Dataset calls
            `feedline.image_size()`.
        max_image_size: largest size for `set_image_size`; memory for it is allocated when the
            workers start. Default: any size; if a batch needs more memory, new workers start with
            more, and batches stay the same.
        prefetch: batches of rows made ahead, of feedline sources and compiled pipelines
            (default 3); memory for one more is allocated. Whole batches use `prefetch_factor`. The
            attribute can be set at any time, up to this number; None restores this number.
        task_ms: work per task (some rows of a batch) in milliseconds (default 50); see
            docs/reference/options.md. A whole batch is one task. The attribute can be set at any
            time, for batches started later.
        device: device for the batches, by torch's name. Default: the CPU. For feedline sources, and
            for torchvision pipelines on the image-row engine (`explain()` prints the engine). If
            ToTensor and Normalize come last in the pipeline, images are copied as uint8 and
            converted on the device by table lookup, to bit-identical values.
        dtype, mean, std: normalisation for feedline sources, with `device` only (default
            float32 and, for three channels, ImageNet's statistics). One mean and std per channel,
            for pixels from 0 to 1, where 1 is the largest value of whole numbers.
        pixel_transform: for feedline sources, with `device` only: `images = f(images, batch)`
            changes a batch's images on the device, e.g. uint8 of shape (N, 3, H, W), before
            normalisation. Like `batch_transform` it runs on a separate stream, in parallel with the
            previous step. `batch` is the batch's specification: seed random generators with
            `batch.batch_seed`, so that a resumed run repeats their values; `batch.phase` is the
            schedule's phase.
        batch_transform: for feedline sources, with `device` only: `images, labels = f(images,
            labels, batch=batch)` changes a batch after normalisation, e.g. MixUp.
        cache: folder or URL of a cache with smaller copies of the images, see `build_cache`, or a
            `feedline.ImageFolder` of the cache, with other settings. For datasets that are a
            `feedline.ImageFolder` or a compiled torchvision folder. Each phase reads the smallest
            copies that are large enough for its size; crops show the same regions. A missing or
            unfinished cache folder is filled during an epoch of originals and read from the next
            iteration on.
        on_error: "raise" names a sample that cannot be loaded; "skip" leaves its row out of its
            batch and lists it in `skipped`. If no sample of a batch can be loaded, the batch is
            left out, and `len` counts it still; on several ranks, which must take equally many
            steps, a SampleError names it in its place. A StorageError is never skipped.
        start_method: "fork", "forkserver" or "spawn". Default: the platform's best, "forkserver" on
            Linux; multiprocessing's default if the dataset is not feedline's.
        rank, world_size: share of this process, with a seed or a schedule. Default: from
            torch.distributed (read again when an iteration begins), else from torchrun's
            environment, else all samples.
        settings: file written by `feedline tune --save`, with values for `num_workers`, `prefetch`,
            `prefetch_factor`, `task_ms` and `pin_memory`. Arguments override it. If the file was
            written on another machine, a warning is issued.

    Raises:
        UsageError: invalid argument; the message names it and the reason.
        ResourceError: not enough memory or processes on this machine.
    """

    dataset: Any
    seed: int | None
    schedule: Any
    weights: Any
    replacement: bool
    image_size: int | None
    max_image_size: int | None
    prefetch: int | None
    task_ms: float | None
    device: torch.device | None
    dtype: torch.dtype | None
    mean: tuple[float, float, float] | None
    std: tuple[float, float, float] | None
    pixel_transform: PixelTransform | None
    batch_transform: BatchTransform | None
    cache: Any
    on_error: str
    start_method: str | None
    rank: int | None
    world_size: int | None
    settings: None
    _runtime: LoaderRuntime
    _not_added: frozenset[str]  # attributes set by the constructor
    _names_of_subclass: frozenset[str] = frozenset()
    """Names of arguments that are methods or properties of a program's class."""
    _is_built = False  # True once the constructor has created the runtime
    _torch_iterator: Any = None
    # Of Accelerate: see `feedline.integrations.accelerate`.
    use_stateful_dataloader = True  # `save_state` and `load_state` use state_dict
    end_of_dataloader = False
    remainder = -1
    in_a_wrapper = False  # a wrapper of Accelerate reads from this loader
    _watch_iterator: Callable[[EpochIterator], Any] | None = None
    _warns_of_stock_loader = True

    @suggest_close_names
    def __init__(
        self,
        dataset: Dataset[_T] | Source,
        batch_size: int | None = 1,
        shuffle: bool | str | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | str | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        schedule: str | Schedule | Phase | Iterable[Phase] | None = None,
        weights: Sequence[float] | NDArray[Any] | torch.Tensor | None = None,
        replacement: bool = True,
        image_size: int | None = None,
        max_image_size: int | None = None,
        prefetch: int | None = None,
        task_ms: float | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        mean: tuple[float, float, float] | None = None,
        std: tuple[float, float, float] | None = None,
        pixel_transform: PixelTransform | None = None,
        batch_transform: BatchTransform | None = None,
        cache: str | os.PathLike[str] | Source | None = None,
        on_error: str = "raise",
        start_method: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        settings: str | os.PathLike[str] | None = None,
    ) -> None:
        values = {**locals()}
        arguments = Arguments(**{each.name: values[each.name] for each in fields(Arguments)})
        completed = add_saved_settings(arguments)
        added_before = set(vars(self))  # by a subclass
        with name_file_in_errors(arguments.settings):
            options = Options.resolve(completed)  # before torch's checks, with shorter messages
        order = create_order(options)
        source, batch_size, drop_last = options.dataset, options.batch_size, options.drop_last
        of_torch = {name: getattr(completed, name) for name in _TORCH_ARGUMENTS}
        if order is not None:
            planned = PlannedSampler(order, source, self)
            batches = PublicBatchSampler(planned, order.batch_size, drop_last)
            of_torch |= {"sampler": None, "batch_sampler": batches}
        super().__init__(
            source,
            batch_size=1 if order else batch_size,
            shuffle=None if order else options.shuffle,  # type: ignore[arg-type]  # None or a bool
            num_workers=options.num_workers,
            drop_last=False if order else drop_last,
            **of_torch,
        )
        recorded = {name for name in vars(self) if name.startswith(_RECORDED_ARGUMENTS)}
        public = {name: getattr(completed, name) for name in _USER_VALUES}
        # The file's values are in the other attributes.
        public |= {"in_order": options.in_order, "device": options.device, "settings": None}
        if order is not None:  # torch has the values of the batch sampler only
            public |= {"batch_size": batch_size, "drop_last": drop_last, "sampler": planned}
        # Not by `__setattr__`: a framework may have replaced it to repeat the user's assignments.
        attributes = vars(self)
        attributes.update((name, public[name]) for name in public.keys() - self._names_of_subclass)
        for name in recorded - added_before:
            del attributes[name]
        runtime = LoaderRuntime(self, completed, options, order)
        attributes.update(_runtime=runtime, _is_built=True)
        weakref.finalize(self, runtime.close)
        if options.adapts and options.num_workers and not options.iterable:
            runtime.set_adapting(True)
        if arguments.settings is not None and not (choice := runtime.stream.choice()).makes_rows:
            warn_if_unused(arguments, completed, str(choice))
        if options.is_row_source:
            runtime.stream.start()
            attributes["max_image_size"] = runtime.stream.choice().max_image_size
        elif options.device is not None or options.cache is not None:
            runtime.stream.choice()  # raises now if the device or the cache cannot be used
        attributes["_not_added"] = frozenset({*attributes, "_not_added"} - added_before)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; `num_workers` and others take effect at once, see the arguments.

        Raises:
            UsageError: the value is invalid, or the argument has no effect after construction.
        """
        if self._is_built:
            if name in LIVE_ATTRIBUTES:
                value = self._runtime.change_attribute(name, value)
            elif name in _FIXED and value is not getattr(self, name):
                instead = "call set_image_size, or " if name == "image_size" else ""
                raise UsageError(
                    f"cannot be changed in a built loader, got {value!r}; {instead}build a new one",
                    argument=name,
                )
            elif name in ("on_error", "timeout"):
                check_argument(name, value)
        super().__setattr__(name, value)

    # Copies

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles consist of the arguments, without the running engine."""
        current = {name: getattr(self, name) for name in _READ_LATER}
        arguments = {**vars(self._runtime.arguments), **current}
        if not self.num_workers:  # the loader may have been built with workers
            arguments |= dict.fromkeys(("prefetch_factor", "multiprocessing_context"))
            arguments["persistent_workers"] = False
        return _rebuild, (type(self), arguments), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """Attributes added by a subclass or a user."""
        excluded = self._not_added | _NOT_COPIED
        return {name: value for name, value in vars(self).items() if name not in excluded}

    # Iteration

    @uncompiled
    def __iter__(self) -> Any:
        """Begin an epoch. An earlier iteration continues independently, with its own workers."""
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        """Create the iterator, as torch's class does: subclasses may override it."""
        iterator = EpochIterator(self, self._runtime)
        self._runtime.begin_pass(iterator)
        return iterator if self._watch_iterator is None else self._watch_iterator(iterator)

    @property
    def _iterator(self) -> Any:
        """Iterator of the persistent workers, as in torch; None without them.

        To end these workers, set the attribute to None.
        """
        if self._torch_iterator is None and self._is_built:
            return self._runtime.persistent_iterator()
        return self._torch_iterator

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        vars(self)["_torch_iterator"] = iterator
        if iterator is None and self._is_built:
            self._runtime.end_idle_workers()

    @property
    def _is_accelerate_prepared(self) -> bool:
        """True after `feedline.integrations.accelerate.prepare`.

        Accelerate reads this attribute before it rebuilds the loader as a torch DataLoader. So
        reading it calls `warn_of_stock_loader`, which warns once.
        """
        if self._watch_iterator is None and self._warns_of_stock_loader:
            vars(self)["_warns_of_stock_loader"] = not warn_of_stock_loader(self)
        return self._watch_iterator is not None

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, prepared: bool) -> None:
        """Ignore the mark that Accelerate sets on each prepared loader."""

    def check_worker_number_rationality(self) -> None:
        """Give torch's advice on the number of workers only if torch's workers are used."""
        if not is_row_source(self.dataset):
            super().check_worker_number_rationality()

    # Position

    @property
    def order(self) -> Order | None:
        """Order planned by feedline; None if samplers or the dataset define it."""
        return self._runtime.stream.options.order

    def __len__(self) -> int:
        """Number of batches in the current epoch."""
        return DataLoader.steps_in(self, self._runtime.stream.position.current.epoch)

    @property
    def epoch(self) -> int:
        """Current epoch, or the epoch of the next iteration. Counted from 0."""
        return self._runtime.stream.position.current.epoch

    @property
    def epoch_finished(self) -> bool:
        """True if all batches of `epoch` are delivered, but the iteration has not ended.

        So it is after a state was loaded that was saved at an epoch's last batch: the next
        iteration has no batches, and the one after it is the next epoch. Raises TypeError like
        `len` if the number of batches is unknown.
        """
        position = self._runtime.stream.position.current
        return position.step > 0 and position.step >= self.steps_in(position.epoch)

    @property
    def epochs(self) -> int | None:
        """Number of epochs of the schedule; None without one."""
        schedule = self._runtime.stream.options.schedule
        return None if schedule is None else schedule.epochs

    @property
    def total_steps(self) -> int:
        """Number of batches of the whole schedule."""
        order = self._runtime.current_order
        return order.total_steps if order else len(self) * (self.epochs or 1)

    def steps_in(self, epoch: int) -> int:
        """Return the number of batches of an epoch."""
        order = self._runtime.current_order
        return order.steps(epoch) if order else self._runtime.stream.position.steps(epoch)

    @property
    def batch(self) -> BatchSpec | None:
        """Specification of the last delivered batch: sample indices, image size, padding.

        Of a batch with skipped samples, of the remaining rows.
        """
        return self._runtime.stream.batch

    @property
    def phase(self) -> Phase:
        """Phase of the last delivered batch; before the first batch, of the next one."""
        return self.batch.phase if self.batch else self._runtime.stream.position.phase

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, or of the current one before its first batch."""
        self._runtime.set_epoch(epoch)

    def set_step(self, step: int) -> None:
        """Skip the first `step` batches of the next iteration's epoch, without making them.

        If the epoch has fewer batches, none are left. An iteration in progress continues
        independently; the next iteration is the following epoch.

        Args:
            step: number of batches to skip.

        Raises:
            UsageError: a loaded state is at a later step, or the dataset is an IterableDataset.
        """
        self._runtime.set_step(step)

    def set_image_size(self, image_size: int | None) -> None:
        """Set the image size of all following batches.

        Args:
            image_size: side of the images in pixels; None returns to the schedule.

        Raises:
            UsageError: larger than `max_image_size`, or the dataset's images have a fixed size.
        """
        self._runtime.stream.set_image_size(image_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the values that define the order, as a small JSON-able dict.

        With a seed or a schedule, it is the same on every rank.
        """
        return self._runtime.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with exactly the batches not yet delivered in a state.

        If this raises an error, nothing has changed. If batches were made in another way when the
        state was saved, so that pixels may differ, a warning names the differences.

        Args:
            state: return value of `state_dict`.

        Raises:
            StateError: the state belongs to another dataset, seed, order, sampler or schedule.
            UsageError: the state's image size is larger than `max_image_size`.
        """
        self._runtime.load_state_dict(state)

    def refresh(self) -> None:
        """Re-read the dataset and start new workers when the next iteration begins.

        Call it after changes that `iter()` does not detect while workers are kept: the contents of
        arrays and of lists with more than 1000 entries, and changes deeper inside the dataset than
        the attributes of its datasets, transforms and other objects.
        """
        self._runtime.stream.refresh()

    # Workers

    @property
    def ranks(self) -> int:
        """Number of processes that share the samples."""
        order = self._runtime.current_order
        return order.world_size if order else sampler_rank_and_world_size(self._index_sampler)[1]

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return list(self._runtime.stream.engine.pids.values())

    @property
    def worker_deaths(self) -> list[str]:
        """Causes of death of replaced workers."""
        return list(self._runtime.stream.record.deaths)

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Samples skipped so far: name and reason."""
        return [(each.name, each.reason) for each in self._runtime.stream.record.skipped]

    @property
    def timing(self) -> StepTimer:
        """Times of the steps."""
        return self._runtime.stream.record.timing

    @property
    def run(self) -> Run:
        """Record of this loader's steps; see `feedline.timing.run`."""
        return self.recorder.run()

    def why(self) -> None:
        """Print the bottleneck of this loader's training, and the fix.

        HTML in a notebook, coloured in a terminal, plain text otherwise.
        """
        from feedline.profile import print_why

        print_why(self.run)

    @property
    def recorder(self) -> Recorder:
        """Recorder of the run."""
        return self._runtime.recording.recorder

    def explain(self) -> str:
        """Describe how the next iteration loads the current dataset, one fact per line."""
        options = self._runtime.current_options()
        return explain(options, self._runtime.stream.choice(options), self.memory_bytes)

    @property
    def memory_bytes(self) -> int:
        """Memory allocated for batches, in bytes. Whole batches allocate it while they are made."""
        return self._runtime.stream.engine.memory_bytes

    @property
    def adapts(self) -> bool:
        """True if workers, batches ahead and task size adapt to the measured training.

        Default with `num_workers="auto"`. Set it to False to keep the current values, or to True to
        adapt any loader with workers; batches are the same in any case. The changes and their
        reasons are in `adaptations`, and logged by the logger "feedline" at level INFO.

        Raises:
            UsageError: set to True without workers, or for an IterableDataset, which is divided by
                the number of workers.
        """
        adaptation = self._runtime.adaptation
        return adaptation is not None and not adaptation.off

    @adapts.setter
    def adapts(self, adapts: bool) -> None:
        self._runtime.set_adapting(adapts)

    @property
    def adaptations(self) -> list[SettingChange]:
        """Latest 256 changes with their reasons."""
        adaptation = self._runtime.adaptation
        return [] if adaptation is None else list(adaptation.decisions)

    # Life

    def close(self) -> None:
        """End the workers. Delivered batches stay valid. May be called again."""
        self._runtime.close()

    def __enter__(self) -> DataLoader[_T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _rebuild(kind: type[DataLoader[Any]], arguments: dict[str, Any]) -> DataLoader[Any]:
    """Build a loader of the same class, without a subclass's constructor, like any pickle."""
    loader = kind.__new__(kind)
    with unpickling_arguments():
        DataLoader.__init__(loader, **arguments)
    return loader
