"""DataLoader: a torch DataLoader with feedline's engine.

Guarantees: batches come in the specified order and at the specified sizes, exact to the batch, on
any number of workers; `state_dict` names the next batch at any moment. A copy, or an unpickled
loader, is built from the same arguments: it begins at the start, and shares no workers.
Relies on: use from one thread of the process that built it; `epoch_iterator` for the work.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import Any, TypeVar

import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Sampler

from feedline.engine.normalise import BatchTransform, PixelTransform
from feedline.engine.source import Source
from feedline.engine.start_method import taking_arguments
from feedline.loader.accelerate import TOLD_BY_ACCELERATE, Accelerated
from feedline.loader.argument_checks import check_samples, is_native
from feedline.loader.epoch_iterator import EpochIterator, LoaderState
from feedline.loader.live_settings import Controls
from feedline.loader.options import Asked, create_order, settings_of
from feedline.loader.ranks import RankAgreement
from feedline.loader.samplers import PlannedSampler, PublicBatchSampler
from feedline.loader.saved_settings import naming_file, warn_of_useless, with_saved
from feedline.order.schedule import Phase, Schedule

__all__ = ["DataLoader"]

_T = TypeVar("_T", covariant=True)
_TORCH_KNOWS_IN_ORDER = "in_order" in signature(TorchDataLoader.__init__).parameters  # from 2.6 on


class DataLoader(Controls, Accelerated, TorchDataLoader[_T]):
    """Data loader whose workers start once and live through epochs and changes of image size.

    Accepts every argument of torch.utils.data.DataLoader, in its order and with its meaning, and
    any Dataset. Arguments after `in_order` are feedline's own. Each `iter()` is one epoch.

    feedline's own sources (`ImageFolder`, `ImageList`, `ImageArray`) give batches (images, labels).
    Images have shape (N, 3, H, W), channels_last in memory: uint8 on the CPU, or with `device`
    normalised, of `dtype`, on that device. Labels are int64, shape (N,). Any other Dataset gives
    the batches of torch's DataLoader.

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
            with a schedule "auto".
        collate_fn, pin_memory: as in torch.
        drop_last: drop an epoch's last batch if it is not full.
        timeout: seconds to wait while no worker finishes a batch (if workers share batches: a row),
            then a LoadTimeoutError, which is a RuntimeError. 0: no limit, and a warning after
            120 s. If workers share batches, a worker that hangs on one row while the others make
            progress, and does not read from storage, is replaced after that time (120 s if it is
            0); a sample that hangs twice raises an error.
        worker_init_fn: as in torch.
        multiprocessing_context: start method, as in torch; or see `start_method`.
        generator: as in torch.
        prefetch_factor: batches each worker makes ahead, as in torch; or see `prefetch`.
        persistent_workers: keep the workers from epoch to epoch. Otherwise they end with the epoch,
            and the next epoch sees every change of the dataset. Workers are always kept with a
            schedule, and if none of your code runs in them. Kept workers restart at the next
            `iter()` after a change that feedline detects (an attribute set, a tensor or a short
            list changed in place); after any other change call `refresh`.
        pin_memory_device: as in torch, which ignores it.
        in_order: as in torch. With a seed or a schedule, batches always come in order.
        seed: seed of order and randomness: the same batches on any number of workers, exact resume
            over all epochs, and, with kept workers, prefetching across epochs. Default: drawn from
            `generator` or torch's random state at each epoch, as in torch; with a schedule 0, and
            the global random state is never touched.
        schedule: phases of image size, as text ("112x10@512,160x10"), a Schedule or Phases. Epochs
            after its end continue its last phase. Default: `image_size` throughout.
        weights: sampling weights, one number of at least 0 per sample, copied; with a seed or a
            schedule. An epoch draws as many samples as the dataset has, like torch's
            WeightedRandomSampler, and the draw is divided among the ranks.
        replacement: with `weights`, draw with replacement. False draws each sample once, heavy ones
            early, and needs all weights above 0.
        image_size: side of the images in pixels, without a schedule. feedline's own sources need
            one of the two. Compiled torchvision pipelines follow it; any other Dataset calls
            `feedline.image_size()`.
        max_image_size: largest size for `set_image_size`; memory for it is allocated when the
            workers start. Default: any size; if a batch needs more memory, new workers start with
            more, and batches stay the same.
        prefetch: batches of rows made ahead, of feedline's own sources and compiled pipelines
            (default 3); memory for one more is allocated. Whole batches use `prefetch_factor`.
        task_ms: work per task (some rows of a batch) in milliseconds (default 50); see
            docs/reference/options.md. A whole batch is one task.
        device: device for the batches, by torch's name. Default: the CPU. For feedline's own
            sources, and for torchvision pipelines whose rows feedline makes, see `explain`: if
            nothing follows their ToTensor and Normalize, images travel as uint8 pixels, and the
            same values, bit for bit, are looked up on the device.
        dtype, mean, std: normalisation for feedline's own sources, with `device` only (default
            float32 and ImageNet's statistics).
        pixel_transform: for the same sources, with `device` only: `images = f(images, batch)`
            changes a batch's images on the device, uint8 of shape (N, 3, H, W), before
            normalisation. Like `batch_transform` it runs on a stream of its own, in parallel with
            the previous step. `batch` is its specification: seed random draws with
            `batch.batch_seed`, so that a resumed run repeats them; `batch.phase` is the schedule's
            phase.
        batch_transform: for the same sources, with `device` only: `images, labels = f(images,
            labels, batch=batch)` changes a batch after normalisation, e.g. MixUp.
        cache: folder or URL of a cache with smaller copies of the images, see `build_cache`, or a
            `feedline.ImageFolder` of it with its own settings. For a `feedline.ImageFolder` or a
            compiled torchvision folder. Each phase reads the smallest copies that serve its size;
            crops show the same regions. A missing or unfinished folder is filled during an epoch of
            originals and read from the next iteration on.
        on_error: "raise" names a sample that cannot be loaded; "skip" leaves its row out of its
            batch and lists it in `skipped`. If no sample of a batch can be loaded, both raise.
        start_method: "fork", "forkserver" or "spawn". Default: the platform's best, "forkserver" on
            Linux; multiprocessing's default if the dataset is not feedline's.
        rank, world_size: share of this process, with a seed or a schedule. Default: from
            torch.distributed (read again when an iteration begins), else from torchrun's
            environment, else all samples.
        settings: file written by `feedline tune --save`. It sets those of `num_workers`,
            `prefetch`, `prefetch_factor`, `task_ms` and `pin_memory` that are not given. A warning
            follows if it was written on another machine.

    Raises:
        UsageError: invalid argument; the message names it and the reason.
        ResourceError: not enough memory or processes on this machine.
    """

    dataset: Any

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
        given = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        without_file, given = given, with_saved(given)
        pin_memory, prefetch_factor = given["pin_memory"], given["prefetch_factor"]
        prefetch, task_ms = given["prefetch"], given["task_ms"]
        added_before = set(vars(self))  # by a subclass
        with naming_file(settings):
            asked = Asked.resolve(given)  # before torch's own checks: these say more
        order = create_order(asked, given)
        samplers: dict[str, Any] = {"sampler": sampler, "batch_sampler": batch_sampler}
        if order is not None:
            sampler = PlannedSampler(order, dataset, self)
            samplers = {"batch_sampler": PublicBatchSampler(sampler, order.batch_size, drop_last)}
        if _TORCH_KNOWS_IN_ORDER:
            samplers["in_order"] = in_order
        super().__init__(
            dataset,  # type: ignore[arg-type]
            batch_size=1 if order else batch_size,
            shuffle=None if order else asked.shuffle,  # type: ignore[arg-type]  # None or a bool
            num_workers=int(asked.num_workers),  # of numpy's, torch would keep it as it is
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=False if order else drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **samplers,
        )
        self.in_order = in_order
        if order is not None:
            # As they were given: torch knows of the batch sampler only. Frameworks read them.
            self.__dict__.update(batch_size=batch_size, drop_last=drop_last, sampler=sampler)
        # As they were given, too: frameworks rebuild the loader from what they find here.
        self.seed, self.schedule, self.image_size = seed, schedule, image_size
        self.weights, self.replacement = weights, replacement
        self.max_image_size, self.prefetch, self.task_ms = max_image_size, prefetch, task_ms
        self.dtype, self.mean, self.std, self.on_error = dtype, mean, std, on_error
        self.pixel_transform, self.batch_transform = pixel_transform, batch_transform
        self.cache = cache
        self.rank, self.world_size, self.start_method = rank, world_size, start_method
        self.settings = None  # what it said is among the others
        self.device = asked.device
        self._asked = asked
        self._arguments = given
        self._planned_batches = self.batch_sampler if order else None
        self._ahead = 0  # whole batches at least, as was found while the loader worked
        self._agreement = RankAgreement()
        self._state = LoaderState(settings_of(self, asked, order), self)
        self._finalizer = weakref.finalize(self, self._state.close)
        if asked.adapts and asked.num_workers and not asked.iterable:
            self.adapts = True
        if settings is not None and (choice := self._state.stream.choice()).rows is None:
            warn_of_useless(settings, without_file, given, str(choice))
        if asked.native:
            self._state.stream.start()
            self.max_image_size = self._state.stream.choice().max_image_size
        elif asked.device is not None:
            self._state.stream.choice()  # which says now whether batches can go there
        self._not_added = frozenset({*vars(self), "_not_added"} - added_before)

    # Copies

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles consist of the arguments, without the running engine."""
        return _built_again, (type(self), self._arguments), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """Attributes added by a subclass or a user."""
        known = self._not_added | TOLD_BY_ACCELERATE
        return {name: value for name, value in vars(self).items() if name not in known}

    # EpochIterator

    def __iter__(self) -> Any:
        """Begin an epoch. An earlier iteration continues independently, with its own workers."""
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        """Create the iterator, as torch's class does: subclasses may override it."""
        iteration = EpochIterator(self, self._state)
        self._begin(iteration)
        return self.watched(iteration, iteration.at_end)

    def _begin(self, iteration: EpochIterator) -> None:
        """Begin an epoch, whose batches an iteration returns."""
        self._state.ensure_usable()
        if not (self._asked.native or self._asked.iterable):
            check_samples(self.dataset, sampled=self._asked.sampled)
        settings = self._settings()
        if settings.order is not None:
            self._agreement.check(settings.order, self._state.stream.position.current, self.dataset)
            self._state.stream.filling.agree(self._agreement, settings.order)
        elif not (self._asked.iterable or self.in_a_wrapper):
            self._agreement.warn_of_draws(settings.sampler)
        self._state.begin(iteration, settings)
        if isinstance(self.sampler, PlannedSampler) and self.order is not None:
            self.sampler.follow(self.order, self.dataset)

    @property
    def _iterator(self) -> Any:
        """Iterator that keeps persistent workers, as in torch; None if there are none.

        Set it to None to end these workers.
        """
        stored = self.__dict__["_iterator"]
        if stored is None and self._keeps_iterator():
            return self._state.kept_iterator(self)
        return stored

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        self.__dict__["_iterator"] = iterator
        if iterator is None and self._keeps_iterator():
            self._state.drop_kept_iterator()

    def _keeps_iterator(self) -> bool:
        """True if torch's loader would keep its iterator; an IterableDataset uses torch's own."""
        if "_state" not in self.__dict__:  # torch's own constructor
            return False
        return bool(self.persistent_workers and self.num_workers and not self._asked.iterable)

    def check_worker_number_rationality(self) -> None:
        """Give torch's advice on the number of workers only if torch's workers are used."""
        if not is_native(self.dataset):
            super().check_worker_number_rationality()

    def __enter__(self) -> DataLoader[_T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _built_again(kind: type[DataLoader[Any]], arguments: dict[str, Any]) -> DataLoader[Any]:
    """Build a loader of the same class, without a subclass's constructor, like any pickle."""
    loader = kind.__new__(kind)
    with taking_arguments():
        DataLoader.__init__(loader, **arguments)
    return loader
