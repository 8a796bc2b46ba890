"""The loader as a user holds it.

Guarantees: batches come in the plan's order at the plan's sizes, exact to the batch, whatever
the number of workers; `state_dict` names the next batch to hand out, at any moment.
Relies on: being used from one thread of the process that built it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch

from feedline.device.carrier import Carrier, Tensors
from feedline.device.cuda import CudaCarrier
from feedline.device.host import HostCarrier
from feedline.device.normalise import IMAGENET_MEAN, IMAGENET_STD, Normalise
from feedline.device.pinning import Pinned
from feedline.engine.feed import Feed
from feedline.engine.ring import Ring
from feedline.engine.roads import default_start_method, start_crew
from feedline.engine.source import Source
from feedline.errors import ClosedError, UsageError
from feedline.loader.arguments import check_arguments, usable_device, worker_count
from feedline.loader.delivery import Delivery
from feedline.loader.explain import explain
from feedline.loader.slots import slot_size
from feedline.plan.batches import Batch, Plan
from feedline.plan.journey import Journey
from feedline.plan.schedule import Phase, Schedule
from feedline.plan.state import resume, snapshot
from feedline.system import rank_and_world
from feedline.trace.split import Timing

__all__ = ["DataLoader"]

# The fork server imports these once, so that every worker starts with them in no time.
_PRELOAD = ("numpy", "torch", "simplejpeg", "PIL.Image", "feedline.images.folder")


class DataLoader:
    """Batches of images, made by worker processes that live as long as the loader.

    Each `iter()` is one epoch of (images, labels). With `device`, images are normalised, of
    `dtype`, on that device; without it they are uint8 on the CPU. Either way their shape is
    (N, 3, H, W), channels_last in memory; labels are int64, shape (N,).

    Args:
        dataset: what makes the samples, e.g. a feedline.ImageFolder.
        batch_size: rows per rank where the schedule names none.
        schedule: phases of image size, as text ("112x10@512,160x10"), a Schedule, or Phases.
            Epochs beyond its end go on as in its last phase. None: `image_size` throughout.
        image_size: side of the images in pixels, without a schedule; 224 if not given.
        max_image_size: the largest that `set_image_size` may ask for, as memory for batches is
            allocated once; None allows up to the largest of the schedule's sizes at which its
            largest batch fits the memory that the schedule itself needs.
        shuffle: a new permutation each epoch.
        drop_last: leave out an epoch's last batch where it is not full.
        seed: all randomness follows from it; the global random state is never touched.
        num_workers: processes; "auto" takes the cores this process may use, 0 none.
        prefetch: batches that are made ahead; the ring has one slot more.
        device: where batches go; None leaves pixels as uint8 on the CPU.
        dtype, mean, std: of the normalised images, used with `device`.
        on_error: what becomes of a sample that cannot be loaded. "raise" names it; "skip"
            leaves its row out of its batch and lists it in `skipped`.
        timeout: seconds after which a worker stuck on one sample is replaced.
        start_method: "forkserver" (Linux) or "spawn"; None takes the platform's best.
        rank, world_size: this process's share; None asks torch.distributed, else the
            environment that torchrun sets, else takes everything.

    Raises:
        UsageError: an argument that cannot be used; says which and why.
        ResourceError: memory or processes that the machine does not have.
    """

    def __init__(
        self,
        dataset: Source,
        batch_size: int = 1,
        *,
        schedule: str | Schedule | Phase | Iterable[Phase] | None = None,
        image_size: int | None = None,
        max_image_size: int | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        num_workers: int | str = "auto",
        prefetch: int = 3,
        device: str | torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        on_error: str = "raise",
        timeout: float = 120.0,
        start_method: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check_arguments(
            dataset, schedule, image_size, max_image_size, prefetch, dtype, on_error, timeout
        )
        found_rank, found_world = rank_and_world()
        self._endless = schedule is None
        if schedule is None:
            schedule = Phase(size=224 if image_size is None else image_size, epochs=1)
        self.dataset = dataset
        self.plan = Plan(
            length=len(dataset),
            schedule=Schedule.of(schedule),
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            rank=found_rank if rank is None else rank,
            world_size=found_world if world_size is None else world_size,
        )
        self.on_error = on_error
        self.device = None if device is None else usable_device(device)
        self.start_method = start_method or default_start_method()
        self.prefetch = prefetch
        normalise = Normalise(mean=mean, std=std, dtype=dtype)
        self._workers = worker_count(num_workers)
        slot_bytes, self.max_image_size = slot_size(dataset, self.plan, max_image_size)
        self.memory_bytes = (prefetch + 1) * slot_bytes
        crew = start_crew(
            dataset,
            slots_bytes=self.memory_bytes,
            workers=self._workers,
            method=self.start_method,
            preload=_PRELOAD,
        )
        ring = Ring(crew.block, slot_bytes, prefetch + 1)
        self._feed = Feed(dataset, crew, ring, workers=self._workers, timeout_s=timeout)
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._feed, None)
        self._carrier: Carrier
        if self.device is not None and self.device.type == "cuda":
            with torch.cuda.device(self.device):
                pinned = Pinned(crew.block)
            self._carrier = CudaCarrier(ring, normalise, self.device, pinned)
            self._finalizer.detach()
            self._finalizer = weakref.finalize(self, _end, os.getpid(), self._feed, self._carrier)
        else:
            self._carrier = HostCarrier(ring, normalise if self.device else None)
        self._owner = os.getpid()
        self._fingerprint = dataset.fingerprint()
        self._journey = Journey(self.plan, endless=self._endless)
        self._iteration = 0  # how many were begun: only the latest may go on
        self._delivery = Delivery(dataset, self._feed, self._carrier, self._journey, on_error)

    # Iteration

    def __iter__(self) -> Iterator[Tensors]:
        self._check_usable()
        if self._journey.begin():
            self._delivery.aim()
        self._iteration += 1
        self._carrier.pause()
        return _Epoch(self, self._iteration)

    def _advance(self, iteration: int) -> Tensors:
        self._check_usable()
        if self._iteration != iteration:
            raise UsageError(
                "this iteration ended when another was begun or the epoch was set; a loader has "
                "one at a time"
            )
        if self._journey.at_end():
            self._journey.finish()
            raise StopIteration
        return self._delivery.next()

    # Position

    def __len__(self) -> int:
        """Batches in the current epoch."""
        return self.plan.steps(self.epoch)

    @property
    def epoch(self) -> int:
        """The epoch under way, or else the one that the next iteration runs. From 0."""
        return self._journey.position.epoch

    @property
    def epochs(self) -> int | None:
        """Epochs of the schedule; None without one."""
        return None if self._endless else self.plan.schedule.epochs

    @property
    def total_steps(self) -> int:
        """Batches over the whole schedule."""
        return self.plan.total_steps

    def steps_in(self, epoch: int) -> int:
        """Batches of an epoch."""
        return self.plan.steps(epoch)

    @property
    def batch(self) -> Batch | None:
        """What was planned for the batch handed out last: sample numbers, size, padding."""
        return self._delivery.batch

    @property
    def phase(self) -> Phase:
        """The phase of the batch handed out last, or before the first, of the one to come."""
        return self.batch.phase if self.batch else self.plan.schedule.phase_at(self.epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` what the next iteration runs."""
        self._check_usable()
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise UsageError(f"an epoch must be a whole number of at least 0, got {epoch!r}")
        if self._journey.set_epoch(epoch):
            self._iteration += 1
            self._delivery.aim()

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
            if size > self.max_image_size:
                raise UsageError(
                    f"image size {size} is above {self.max_image_size}, for which memory was "
                    f"allocated; build the loader with max_image_size={size}"
                )
        if self._journey.set_image_size(size):
            self._delivery.aim()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: small, JSON-able, the same on every rank."""
        return snapshot(self.plan, self._journey.position, self._fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with exactly the batches that the state's loader had not handed out.

        Raises:
            StateError: the state is of another dataset, seed, order or schedule.
        """
        self._check_usable()
        position = resume(state, self.plan, self._fingerprint)
        if position.image_size is not None and position.image_size > self.max_image_size:
            raise UsageError(
                f"the state's image size {position.image_size} is above {self.max_image_size}; "
                f"build the loader with max_image_size={position.image_size}"
            )
        self._journey.restore(position)
        self._delivery.aim()

    # Workers

    @property
    def num_workers(self) -> int:
        """How many worker processes make the batches.

        Can be set at any time, but not between none and some.
        """
        return self._workers

    @num_workers.setter
    def num_workers(self, workers: int | str) -> None:
        self._check_usable()
        wanted = worker_count(workers)
        if (wanted == 0) != (self._workers == 0):
            raise UsageError(
                f"num_workers cannot change between {self._workers} and {wanted} while the "
                "loader lives; build a new one"
            )
        if wanted != self._workers:
            self._delivery.recover()
            self._feed.resize(wanted)
            self._workers = wanted

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._feed.pids

    @property
    def worker_deaths(self) -> list[str]:
        """How each worker died that had to be replaced."""
        return list(self._feed.deaths)

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Samples left out so far: their names and why."""
        return list(self._delivery.skipped)

    @property
    def timing(self) -> Timing:
        """Where the time of the steps goes."""
        return self._carrier.timing

    def explain(self) -> str:
        """What will run, in words: one fact a line."""
        return explain(
            dataset=self.dataset,
            plan=self.plan,
            endless=self._endless,
            workers=self._workers,
            start_method=self.start_method,
            prefetch=self.prefetch,
            memory_bytes=self.memory_bytes,
            device=self.device,
            on_error=self.on_error,
        )

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

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Epoch:
    """The batches of one epoch. An error in one `next` does not end it: the next tries again."""

    def __init__(self, loader: DataLoader, iteration: int) -> None:
        self._loader = loader
        self._iteration = iteration
        self._ended = False

    def __iter__(self) -> _Epoch:
        return self

    def __next__(self) -> Tensors:
        if self._ended:
            raise StopIteration
        try:
            return self._loader._advance(self._iteration)
        except StopIteration:
            self._ended = True
            raise


def _end(owner: int, feed: Feed, carrier: Carrier | None) -> None:
    """Close a loader; not the parent's, where a forked child collects its garbage."""
    if os.getpid() == owner:
        if carrier is not None:
            carrier.close()
        feed.close()
