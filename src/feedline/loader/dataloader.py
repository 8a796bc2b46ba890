"""The loader as a user holds it: a torch DataLoader with an engine of feedline's own.

Guarantees: batches come in the order and at the sizes that were asked for, exact to the batch, on
any number of workers; `state_dict` names the next batch to hand out, at any moment. A copy, or
what a pickle gives, is built of the same arguments: it begins at the start, and shares no workers.
Relies on: being used from one thread of the process that built it; `session` for all that works.
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

from feedline.device.on_device import BatchTransform, PixelTransform
from feedline.engine.source import Source
from feedline.engine.start_method import taking_arguments
from feedline.loader.accelerate_mixin import TOLD_BY_ACCELERATE, Accelerated
from feedline.loader.backends.torch_engine import TorchBackend
from feedline.loader.check_samples import check_samples
from feedline.loader.checks import is_native
from feedline.loader.controls import Controls
from feedline.loader.iteration import Iteration
from feedline.loader.planning import plan_of
from feedline.loader.public_samplers import PlannedSampler, PublicBatchSampler
from feedline.loader.rank_agreement import RankAgreement
from feedline.loader.saved_settings import naming_file, warn_of_useless, with_saved
from feedline.loader.session import Session
from feedline.loader.settings import Asked, settings_of
from feedline.plan.schedule import Phase, Schedule

__all__ = ["DataLoader"]

_T = TypeVar("_T", covariant=True)
_TORCH_KNOWS_IN_ORDER = "in_order" in signature(TorchDataLoader.__init__).parameters  # from 2.6 on


class DataLoader(Controls, Accelerated, TorchDataLoader[_T]):
    """A torch DataLoader whose workers start once and live through epochs and image sizes.

    It takes every argument of torch.utils.data.DataLoader, in its order and with its meaning, and
    any Dataset; the keywords behind `in_order` are its own. Each `iter()` is one epoch.

    Of feedline's own sources (`ImageFolder`, `ImageArray`) a batch is (images, labels): without
    `device` uint8 on the CPU, with it normalised, of `dtype`, on that device; either way of shape
    (N, 3, H, W), channels_last in memory; labels are int64, shape (N,). Of any other Dataset a
    batch is what torch's DataLoader makes of it.

    A copy of it, or what comes back from a pickle, is another loader with the same arguments. It
    stands at the beginning; `load_state_dict(loader.state_dict())` brings it to where this one is.

    Args:
        dataset: what the samples come from.
        batch_size: rows per rank where the schedule names none; None: no batching.
        shuffle: a new permutation each epoch. None: as torch's, no; with a schedule, yes.
            "window:16384", with a seed or a schedule: one for disks that seek badly, see
            docs/explanation/determinism.md. Samples are mixed only with those of their window, so a
            folder that is sorted by class gives batches of few classes.
        sampler, batch_sampler: as torch's.
        num_workers: processes; 0 for none. "auto" begins with the cores this process may use and
            then follows what is seen of the training, see `adapts`. None: as torch's, 0; with a
            schedule, "auto".
        collate_fn, pin_memory, worker_init_fn, generator: as torch's.
        drop_last: leave out an epoch's last batch where it is not full.
        timeout: as torch's, seconds to wait while no worker finishes a batch (where workers share
            batches: a row of one), then a RuntimeError, LoadTimeoutError; 0 waits for ever, with a
            warning after 120 s. Where workers share batches, one that hangs alone on a row, while
            the others make progress and it does not read from storage, is replaced after that
            time, 120 s if it is 0; the second time the sample is an error.
        multiprocessing_context: how workers start, as torch's; or see `start_method`.
        prefetch_factor: batches that each worker makes ahead, as torch's; see `prefetch`.
        persistent_workers: keep the workers from epoch to epoch; else they end with the epoch, and
            the next one sees every change of the dataset. A schedule keeps them in any case, and
            so does a dataset of which no code of yours runs in them. Kept workers start again at
            the next `iter()` after a change that feedline can see (an attribute that was set, a
            tensor or a short list changed in place); after any other call `refresh`.
        pin_memory_device: as torch's, which no longer heeds it.
        in_order: as torch's. With a seed or a schedule batches come in order.
        seed: all order and randomness follows from it: the same batches on any number of workers,
            exact resume over all epochs, and, where workers are kept, epochs that are prefetched
            into one another. None: drawn from `generator` or torch's random state at each epoch,
            as torch does; with a schedule 0, and the global random state is never touched.
        schedule: phases of image size, as text ("112x10@512,160x10"), a Schedule, or Phases.
            Epochs beyond its end go on as in its last phase. None: `image_size` throughout.
        weights: draw each epoch's samples by weight, as torch's WeightedRandomSampler does, and
            share that one draw out over the ranks; with a seed or a schedule. A number of at least
            0 for each sample, copied; an epoch has as many samples as the dataset.
        replacement: with `weights` only: a sample may come several times. False draws each once,
            heavy ones early, and needs all weights above 0.
        image_size: side of the images in pixels, without a schedule. feedline's own sources need
            one of the two; a recognised torchvision pipeline follows it, any other Dataset asks
            `feedline.image_size()` for it.
        max_image_size: the largest that `set_image_size` may set; memory for it is allocated when
            the workers start. None: any size. When a batch needs more memory than any before it,
            new workers start with more, and batches stay the same.
        prefetch: batches of rows that are made ahead, of feedline's own sources and of recognised
            pipelines; None for 3. One more is allocated. Whole batches see `prefetch_factor`.
        piece_ms: work that a worker takes at a time from a batch of rows, in milliseconds; None
            for 50. See docs/reference/options.md for when another value helps. Whole batches are
            one worker's each, and have no pieces.
        device: where batches go, by torch's name; None leaves them on the CPU. Of feedline's own
            sources; and of a torchvision pipeline whose rows feedline makes, see `explain`: there
            the images travel as uint8 pixels where nothing stands behind its ToTensor and
            Normalize, whose values are looked up on the device, the same to the bit.
        dtype, mean, std: of the normalised images of feedline's own sources, with `device` only;
            None for float32 and ImageNet's statistics.
        pixel_transform: of these, with `device` only: `images = f(images, batch)` changes a batch's
            images on the device, uint8 of shape (N, 3, H, W), before they are normalised. As with
            `batch_transform`, the device does it beside the step before, on a stream of its own.
            `batch` is what was planned: `batch.whole_seed` seeds what is drawn, so that a resumed
            run draws the same, and `batch.phase` is the schedule's.
        batch_transform: of these, with `device` only: `images, labels = f(images, labels,
            batch=batch)` changes a batch on the device behind that, as MixUp does.
        cache: the folder or the URL of a cache with smaller copies of the dataset's images, as
            `build_cache` makes one, or a `feedline.ImageFolder` of it with settings of its own. The
            dataset is a `feedline.ImageFolder` or a recognised torchvision folder. Each phase gets
            the smallest copies that serve its size; crops are where they were. A folder that is
            not there or not finished is filled during an epoch of originals, and read from the
            next iteration on.
        on_error: what becomes of a sample that cannot be loaded. "raise" names it; "skip"
            leaves its row out of its batch and lists it in `skipped`; where not one of a batch
            can be loaded, it raises, as a batch of nothing cannot be handed out.
        start_method: "fork", "forkserver" or "spawn". None: the platform's best, "forkserver" on
            Linux; for any other Dataset what multiprocessing would take.
        rank, world_size: this process's share, with a seed or a schedule. None asks
            torch.distributed (again when an iteration begins), else the environment that torchrun
            sets, else takes everything.
        settings: a file that `feedline tune --save` has written: what it says stands for those of
            `num_workers`, `prefetch`, `prefetch_factor`, `piece_ms` and `pin_memory` that are left
            out. Where it was written on another machine, a warning says so.

    Raises:
        UsageError: an argument that cannot be used; says which and why.
        ResourceError: memory or processes that the machine does not have.
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
        piece_ms: float | None = None,
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
        prefetch, piece_ms = given["prefetch"], given["piece_ms"]
        added_before = set(vars(self))  # by a subclass
        with naming_file(settings):
            asked = Asked.resolve(given)  # before torch's own checks: these say more
        plan = plan_of(asked, given)
        samplers: dict[str, Any] = {"sampler": sampler, "batch_sampler": batch_sampler}
        if plan is not None:
            sampler = PlannedSampler(plan, dataset, self)
            samplers = {"batch_sampler": PublicBatchSampler(sampler, plan.batch_size, drop_last)}
        if _TORCH_KNOWS_IN_ORDER:
            samplers["in_order"] = in_order
        super().__init__(
            dataset,  # type: ignore[arg-type]
            batch_size=1 if plan else batch_size,
            shuffle=None if plan else asked.shuffle,  # type: ignore[arg-type]  # None or a bool
            num_workers=int(asked.num_workers),  # of numpy's, torch would keep it as it is
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=False if plan else drop_last,
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
        if plan is not None:
            # As they were given: torch knows of the batch sampler only. Frameworks read them.
            self.__dict__.update(batch_size=batch_size, drop_last=drop_last, sampler=sampler)
        # As they were given, too: frameworks build the loader anew from what they find here.
        self.seed, self.schedule, self.image_size = seed, schedule, image_size
        self.weights, self.replacement = weights, replacement
        self.max_image_size, self.prefetch, self.piece_ms = max_image_size, prefetch, piece_ms
        self.dtype, self.mean, self.std, self.on_error = dtype, mean, std, on_error
        self.pixel_transform, self.batch_transform = pixel_transform, batch_transform
        self.cache = cache
        self.rank, self.world_size, self.start_method = rank, world_size, start_method
        self.settings = None  # what it said is among the others
        self.device = asked.device
        self._asked = asked
        self._arguments = given
        self._planned_batches = self.batch_sampler if plan else None
        self._ahead = 0  # whole batches at least, as was found while the loader worked
        self._agreement = RankAgreement()
        engine = TorchBackend(self) if asked.iterable else None
        self._session = Session(settings_of(self, asked, plan), engine)
        self._finalizer = weakref.finalize(self, self._session.close)
        if asked.adapts and asked.num_workers and engine is None:
            self.adapts = True
        if settings is not None and (decision := self._session.decision()).rows is None:
            warn_of_useless(settings, without_file, given, str(decision))
        if asked.native:
            self._session.open()
            self.max_image_size = self._session.decision().max_image_size
        elif asked.device is not None:
            self._session.decision()  # which says now whether batches can go there
        self._not_added = frozenset({*vars(self), "_not_added"} - added_before)

    # Copies

    def __reduce__(self) -> tuple[Any, ...]:
        """What copies and pickles are made of: the arguments, not what is at work."""
        return _built_again, (type(self), self._arguments), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """What a subclass or a user has added to the loader."""
        known = self._not_added | TOLD_BY_ACCELERATE
        return {name: value for name, value in vars(self).items() if name not in known}

    # Iteration

    def __iter__(self) -> Any:
        """Begin an epoch. An earlier iteration goes on by itself, with workers of its own."""
        return self._get_iterator()

    def _get_iterator(self) -> Any:
        """What torch's class calls here: subclasses may have one of their own."""
        iteration = Iteration(self, self._session)
        self._begin(iteration)
        return self.watched(iteration, iteration.at_end)

    def _begin(self, iteration: Iteration) -> None:
        """Begin an epoch, whose batches an iteration hands out."""
        self._session.ensure_usable()
        if not (self._asked.native or self._asked.iterable):
            check_samples(self.dataset, sampled=self._asked.sampled)
        settings = self._settings()
        if settings.plan is not None:
            self._agreement.check(settings.plan, self._session.cursor.position, self.dataset)
            self._session.filling.agree(self._agreement, settings.plan)
        elif not (self._asked.iterable or self.in_a_wrapper):
            self._agreement.warn_of_draws(settings.sampler)
        self._session.begin(iteration, settings)
        if isinstance(self.sampler, PlannedSampler) and self.plan is not None:
            self.sampler.follow(self.plan, self.dataset)

    @property
    def _iterator(self) -> Any:
        """The iterator that keeps persistent workers, as torch's; None if there are none.

        Set it to None to end these workers.
        """
        stored = self.__dict__["_iterator"]
        if stored is None and self._keeps_iterator():
            return self._session.kept_iterator(self)
        return stored

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        self.__dict__["_iterator"] = iterator
        if iterator is None and self._keeps_iterator():
            self._session.drop_kept_iterator()

    def _keeps_iterator(self) -> bool:
        """True if torch's loader would keep its iterator; an IterableDataset has torch's own."""
        if "_session" not in self.__dict__:  # torch's own constructor
            return False
        return bool(self.persistent_workers and self.num_workers and not self._asked.iterable)

    def check_worker_number_rationality(self) -> None:
        """Leave torch's advice on the number of workers to those who ask torch for workers."""
        if not is_native(self.dataset):
            super().check_worker_number_rationality()

    def __enter__(self) -> DataLoader[_T]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _built_again(kind: type[DataLoader[Any]], arguments: dict[str, Any]) -> DataLoader[Any]:
    """A loader of the same class. As with any pickle, a subclass's constructor is not called."""
    loader = kind.__new__(kind)
    with taking_arguments():
        DataLoader.__init__(loader, **arguments)
    return loader
