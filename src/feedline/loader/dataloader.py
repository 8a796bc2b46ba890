"""The loader as a user holds it: a torch DataLoader with an engine of feedline's own.

Guarantees: batches come in the way's order at the way's sizes, exact to the batch, whatever the
number of workers; `state_dict` names the next batch to hand out, at any moment. A copy, or what a
pickle gives, is built of the same arguments: it begins anew, and shares nothing that is at work.
Relies on: being used from one thread of the process that built it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from inspect import signature
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler

from feedline.device.normalise import IMAGENET_MEAN, IMAGENET_STD, Normalise
from feedline.engine.source import Source
from feedline.engine.start_method import taking_arguments
from feedline.errors import ClosedError, UsageError
from feedline.frameworks.accelerate import TOLD_BY_ACCELERATE, Accelerated
from feedline.loader.arguments import check_arguments, usable_device, worker_count
from feedline.loader.backends.backend import Backend
from feedline.loader.choice import choose
from feedline.loader.cursor import Cursor
from feedline.loader.explain import explain
from feedline.loader.iteration import Iteration
from feedline.loader.planning import phases_of, plan_of
from feedline.loader.public_samplers import PlannedSampler, PublicBatchSampler
from feedline.loader.user import UserData, is_source
from feedline.plan.batches import Batch
from feedline.plan.planned_cursor import PlannedCursor
from feedline.plan.schedule import Phase, Schedule
from feedline.sampling.samplers import share_of
from feedline.system import rank_and_world
from feedline.trace.split import Timing

__all__ = ["DataLoader"]

_T = TypeVar("_T", covariant=True)
_TORCH_KNOWS_IN_ORDER = "in_order" in signature(TorchDataLoader.__init__).parameters  # from 2.6 on


class DataLoader(Accelerated, TorchDataLoader[_T]):
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
        shuffle: a new permutation each epoch. None: as torch, no; for feedline's own sources, yes.
        sampler, batch_sampler: as torch's.
        num_workers: processes; "auto" takes the cores this process may use, 0 none. None: as
            torch, 0; for feedline's own sources, "auto".
        collate_fn, pin_memory, worker_init_fn, generator: as torch's.
        drop_last: leave out an epoch's last batch where it is not full.
        timeout: for feedline's own sources, seconds after which a worker stuck on one sample is
            replaced, 0 for 120. For any other Dataset as torch's: seconds that a batch may take,
            0 for ever.
        multiprocessing_context: how workers start, as torch's; or see `start_method`.
        prefetch_factor: batches that each worker makes ahead, as torch's; see `prefetch`.
        persistent_workers: workers live on in any case; True keeps them also where it cannot be
            told whether the dataset has changed since they began.
        pin_memory_device: as torch's, which no longer heeds it.
        in_order: as torch's. Where feedline makes the order, batches come in order in any case.
        seed: all order and randomness follows from it: the same batches on any number of workers,
            exact resume over all epochs, epochs that are prefetched into one another. None: drawn
            from `generator` or torch's random state at each epoch, in torch's way; 0 for
            feedline's own sources and with a schedule, of which the global random state is
            never touched.
        schedule: phases of image size, as text ("112x10@512,160x10"), a Schedule, or Phases.
            Epochs beyond its end go on as in its last phase. None: `image_size` throughout.
        image_size: side of the images in pixels, without a schedule. None: 224 for feedline's own
            sources. Any other Dataset asks `feedline.image_size()` for it.
        max_image_size: the largest that `set_image_size` may ask for, as memory for batches is
            allocated once; None allows up to the largest of the schedule's sizes at which its
            largest batch fits the memory that the schedule itself needs.
        prefetch: batches that are made ahead where rows are, of feedline's own sources and of
            recognised pipelines; the ring has one more.
        device: where batches of feedline's own sources go; None leaves them uint8 on the CPU.
        dtype, mean, std: of the normalised images, used with `device`.
        on_error: what becomes of a sample that cannot be loaded. "raise" names it; "skip"
            leaves its row out of its batch and lists it in `skipped`.
        start_method: "fork", "forkserver" or "spawn". None: the platform's best, "forkserver" on
            Linux; for any other Dataset what multiprocessing would take.
        rank, world_size: this process's share, where feedline makes the order: of its own
            sources, and with a seed or a schedule. None asks torch.distributed (again when an
            iteration begins), else the environment that torchrun sets, else takes everything.

    Raises:
        UsageError: an argument that cannot be used; says which and why.
        ResourceError: memory or processes that the machine does not have.
    """

    dataset: Any
    _cursor: Cursor
    _maker: Backend
    _user: Callable[[], UserData] | None

    def __init__(
        self,
        dataset: Dataset[_T] | Source,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
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
        image_size: int | None = None,
        max_image_size: int | None = None,
        prefetch: int = 3,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        on_error: str = "raise",
        start_method: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        given = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        added_before = set(vars(self))  # by a subclass
        own = is_source(dataset)
        # Before torch's own checks: these say more.
        check_arguments(
            cast(Source, dataset) if own else None,
            dataset=dataset,
            sampled=sampler is not None or batch_sampler is not None,
            shuffle=shuffle,
            batch_size=batch_size,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            schedule=schedule,
            image_size=image_size,
            max_image_size=max_image_size,
            prefetch=prefetch,
            dtype=dtype,
            on_error=on_error,
            timeout=timeout,
            device=device,
            collate_fn=collate_fn,
            seed=seed,
            iterable=isinstance(dataset, IterableDataset),
        )
        normalise = Normalise(mean=mean, std=std, dtype=dtype)
        if num_workers is None:
            num_workers = "auto" if own else 0
        if own or isinstance(num_workers, str):
            num_workers = worker_count(num_workers)
        num_workers = int(num_workers)  # of numpy's, torch would keep it as it is
        phases = phases_of(schedule, image_size, own)
        self.plan = plan_of(
            dataset,
            phases,
            own=own,
            sampled=sampler is not None or batch_sampler is not None,
            asked=seed is not None or schedule is not None,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        shown: dict[str, Any] = {"sampler": sampler, "batch_sampler": batch_sampler}
        if self.plan:
            order = PlannedSampler(self.plan, dataset)
            order.belongs_to(self)
            shown = {"batch_sampler": PublicBatchSampler(order, self.plan.batch_size, drop_last)}
        if _TORCH_KNOWS_IN_ORDER:
            shown["in_order"] = in_order
        super().__init__(
            dataset,  # type: ignore[arg-type]
            batch_size=1 if self.plan else batch_size,
            shuffle=None if self.plan else shuffle,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=False if self.plan else drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **shown,
        )
        self.in_order = in_order
        if self.plan:
            # As they were given: torch knows of the batch sampler only. Frameworks read them.
            shown = {"batch_size": batch_size, "drop_last": drop_last, "sampler": order}
            self.__dict__.update(shown)
        elif batch_sampler is None and batch_size and not isinstance(dataset, IterableDataset):
            self.__dict__["batch_sampler"] = PublicBatchSampler(self.sampler, batch_size, drop_last)
        # As they were given, too: frameworks build the loader anew from what they find here.
        self.seed, self.schedule, self.image_size = seed, schedule, image_size
        self.max_image_size, self.prefetch = max_image_size, prefetch
        self.dtype, self.mean, self.std, self.on_error = dtype, mean, std, on_error
        self.rank, self.world_size = rank, world_size
        self.start_method = start_method
        self.device = None if device is None else usable_device(device)
        self._owner = os.getpid()
        self._iteration = 0  # how many were begun: only the latest may go on
        self._given = False  # the latest has handed something out
        chosen = choose(self, phases, normalise)
        self._cursor, self._maker, self._user = chosen.standing, chosen.maker, chosen.user
        self.road = chosen.road
        if own:
            self.max_image_size = self._maker.max_image_size
        self._finalizer = weakref.finalize(self, _end, self._owner, self._maker)
        self._arguments = given
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
        """Begin an epoch."""
        self._check_usable()
        self._given = False
        self._notice_changes()
        self._maker.begin()
        self._iteration += 1
        iteration = Iteration(self, partial(self._advance, self._iteration), self._born)
        return self.watched(iteration, self._left)

    def _left(self) -> int:
        """Batches that the epoch under way still has."""
        position = self._cursor.position
        return self._cursor.steps(position.epoch) - position.step

    def _advance(self, iteration: int) -> Any:
        self._check_usable()
        if self._iteration != iteration:
            raise UsageError(
                "this iteration ended when another was begun or the epoch was set; a loader has "
                "one at a time"
            )
        self._given = True
        return self._maker.next()

    # Position

    def __len__(self) -> int:
        """Batches in the current epoch."""
        self._notice_changes()
        return self._cursor.steps(self.epoch)

    def _notice_changes(self) -> None:
        """Plan anew if torch.distributed was set up since, or the dataset has another length.

        Lightning, for one, sets it up in `fit`, to which the loader is given.
        """
        if self.plan is None or self._given:
            return
        rank, world_size = self.plan.rank, self.plan.world_size
        if self.rank is None and self.world_size is None:
            rank, world_size = rank_and_world()
        now = (len(self.dataset), rank, world_size)
        if now != (self.plan.length, self.plan.rank, self.plan.world_size):
            assert isinstance(self._cursor, PlannedCursor), "a plan is a journey's"
            if now[0] != self.plan.length and self._cursor.restored:
                raise UsageError(
                    f"the dataset has {now[0]} samples, and had {self.plan.length} when the state "
                    "was loaded that this epoch is to go on from; make it what it was, or begin "
                    "anew with set_epoch"
                )
            self.plan = replace(self.plan, length=now[0], rank=rank, world_size=world_size)
            self._cursor.replan(self.plan)
            cast(PlannedSampler, self.sampler).replan(self.plan)
            self._maker.restart_prefetch()

    @property
    def epoch(self) -> int:
        """The epoch under way, or else the one that the next iteration runs. From 0."""
        return self._cursor.position.epoch

    @property
    def epochs(self) -> int | None:
        """Epochs of the schedule; None without one."""
        return None if self.schedule is None else Schedule.of(self.schedule).epochs

    @property
    def total_steps(self) -> int:
        """Batches over the whole schedule."""
        self._notice_changes()
        return self.plan.total_steps if self.plan else len(self) * (self.epochs or 1)

    def steps_in(self, epoch: int) -> int:
        """Batches of an epoch."""
        self._notice_changes()
        return self._cursor.steps(epoch)

    @property
    def batch(self) -> Batch | None:
        """What was planned for the batch handed out last: sample numbers, size, padding."""
        return self._maker.batch

    @property
    def phase(self) -> Phase:
        """The phase of the batch handed out last, or before the first, of the one to come."""
        return self.batch.phase if self.batch else self._cursor.phase

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` what the next iteration runs, or the one that has given nothing yet."""
        self._check_usable()
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError(f"an epoch must be a whole number of at least 0, got {epoch!r}")
        if self._cursor.set_epoch(epoch):
            if self._given:
                self._iteration += 1
            self._maker.restart_prefetch()

    def set_image_size(self, size: int | None) -> None:
        """Make the next batch handed out, and all after it, of this size in pixels.

        Args:
            size: side of the images; None follows the schedule again.

        Raises:
            UsageError: larger than the memory that was allocated allows.
        """
        self._check_usable()
        if size is not None:
            Phase(size=size, epochs=1)  # checks the range
            largest = self._maker.max_image_size
            if largest is not None and size > largest:
                raise UsageError(
                    f"image size {size} is above {largest}, for which memory was allocated; build "
                    f"the loader with max_image_size={size}"
                )
        if self._cursor.set_image_size(size):
            self._maker.restart_prefetch()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: small and JSON-able; where it plans itself, on every rank."""
        self._notice_changes()
        return self._cursor.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with exactly the batches that the state's loader had not handed out.

        Raises:
            StateError: the state is of another dataset, seed, order, sampler or schedule.
        """
        self._check_usable()
        size = state.get("image_size") if isinstance(state, Mapping) else None
        before = self._cursor.position.image_size
        self._notice_changes()
        self._cursor.load(state)
        largest = self._maker.max_image_size
        if isinstance(size, int) and largest is not None and size > largest:
            self._cursor.set_image_size(before)
            raise UsageError(
                f"the state's image size {size} is above {largest}; build the loader with "
                f"max_image_size={size}"
            )
        self._maker.restart_prefetch()

    # Workers

    @property
    def num_workers(self) -> int:
        """How many worker processes make the batches.

        Can be set at any time, but not between none and some.
        """
        workers: int = self.__dict__["num_workers"]
        return workers

    @num_workers.setter
    def num_workers(self, workers: int | str) -> None:
        if "_maker" not in self.__dict__:  # torch's own constructor
            self.__dict__["num_workers"] = workers
            return
        self._check_usable()
        wanted, had = worker_count(workers), self.num_workers
        if (wanted == 0) != (had == 0):
            raise UsageError(
                f"num_workers cannot change between {had} and {wanted} while the loader lives; "
                "build a new one"
            )
        if wanted != had:
            self._maker.resize(wanted)
            self.__dict__["num_workers"] = self._arguments["num_workers"] = wanted

    def _born(self) -> list[int] | None:
        """Process ids of the workers, once there are as many as there are to be."""
        pids = self._maker.pids
        workers = 0 if self._user and self._user().gather() else self.num_workers
        return pids if len(pids) >= workers else None

    @property
    def ranks(self) -> int:
        """How many processes the samples are shared among."""
        self._notice_changes()
        return self.plan.world_size if self.plan else share_of(self._index_sampler)[1]

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._maker.pids

    @property
    def worker_deaths(self) -> list[str]:
        """How each worker died that had to be replaced."""
        return self._maker.deaths

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Samples left out so far: their names and why."""
        return list(self._maker.skipped)

    @property
    def timing(self) -> Timing:
        """Where the time of the steps goes."""
        return self._maker.timing

    def check_worker_number_rationality(self) -> None:
        """Leave torch's advice on the number of workers to those who ask torch for workers."""
        if not is_source(self.dataset):
            super().check_worker_number_rationality()

    def explain(self) -> str:
        """What will run, in words: one fact a line; looks at the dataset as it is now."""
        user = self._user() if self._user else None
        found = user.recognised() if user else None
        return explain(self, found, gathers=user is not None and user.gather() is not None)

    @property
    def memory_bytes(self) -> int:
        """What is allocated for batches now: by rows all there will be, else what they needed."""
        return self._maker.memory_bytes

    # Life

    def _check_usable(self) -> None:
        if not self._finalizer.alive:
            raise ClosedError("the loader is closed; build a new one")
        if os.getpid() != self._owner:
            raise UsageError(
                "this loader belongs to the process that built it; build one in each process"
            )

    def close(self) -> None:
        """End the workers. Batches that were handed out stay valid. May be called twice."""
        if os.getpid() == self._owner:
            self._finalizer()

    def __enter__(self) -> DataLoader[_T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _built_again(kind: type[DataLoader[Any]], arguments: dict[str, Any]) -> DataLoader[Any]:
    """A loader of the same class. As with any pickle, a subclass's constructor is not called."""
    loader = kind.__new__(kind)
    with taking_arguments():
        DataLoader.__init__(loader, **arguments)
    return loader


def _end(owner: int, maker: Backend) -> None:
    """Close a loader; not the parent's, where a forked child collects its garbage."""
    if os.getpid() == owner:
        maker.close()
