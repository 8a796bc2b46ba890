"""The processes of one training, started by torchrun.

Guarantees: with a single process nothing is set up and each call returns at once. With several,
every call is a collective: all ranks have to make it, in the same order. Values on the CPU are
exchanged by gloo, also if the program has set up a process group for CUDA alone. If a rank of this
machine ends, the error of the others names it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from feedline.errors import FeedlineError, UsageError
from feedline.system import rank_and_world

__all__ = ["Peer", "Ranks", "find_ended", "is_lost_connection", "join_ranks"]

_T = TypeVar("_T")
_TIMEOUT = timedelta(minutes=10)
"""Longest wait for another rank: longer than a validation, or a checkpoint written by rank 0."""
_ENDING_S = 5.0
"""Longest time from an error of a rank, which closes its connections, to the end of its process."""
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the training.

    Args:
        rank: its number, from 0.
        world: number of ranks.
        group: process group for values on the CPU; None for the default group.
    """

    rank: int = 0
    world: int = 1
    group: distributed.ProcessGroup | None = None

    @property
    def is_main(self) -> bool:
        """True for rank 0, which writes and prints."""
        return self.rank == 0

    def summed(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks; the value itself does not change."""
        if self.world == 1:
            return value
        total = value.to("cpu", copy=True)
        distributed.all_reduce(total, group=self.group)
        return total.to(value.device)

    def largest(self, *numbers: int) -> list[int]:
        """The largest value over all ranks, for each of the numbers."""
        if self.world == 1:
            return list(numbers)
        found = torch.tensor(numbers, device="cpu")
        distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self.group)
        return found.tolist()

    def from_main(self, make: Callable[[], _T]) -> _T:
        """Call `make` on rank 0 and return its value on every rank."""
        if self.world == 1:
            return make()
        values = [make() if self.is_main else None]
        distributed.broadcast_object_list(values, src=0, group=self.group)
        value: Any = values[0]
        return value  # type: ignore[no-any-return]

    def gathered(self, value: _T) -> list[_T]:
        """The value of each rank, in order."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, value, group=self.group)
        return found

    def share_buffers(self, model: nn.Module) -> None:
        """Copy the running statistics of rank 0 to every rank."""
        if self.world > 1:
            for buffer in model.buffers():
                group = self.group if buffer.device.type == "cpu" else None
                distributed.broadcast(buffer, src=0, group=group)

    def parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model with its gradients averaged over the ranks."""
        if self.world == 1:
            return model
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the other processes of the training, if torchrun has started any.

    A process group that the program has set up is used, with a gloo group for values on the CPU.

    Raises:
        UsageError: the environment has a rank, but not the address of the others.
        FeedlineError: another rank has ended; names it if it ran on this machine.
    """
    rank, world = rank_and_world()
    if world == 1:
        yield Ranks(rank, world)
        return
    if distributed.is_initialized():
        group: Any = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        try:
            yield Ranks(rank, world, group)
        finally:
            distributed.destroy_process_group(group)
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UsageError(
            f"this is rank {rank} of {world}, but {', '.join(missing)} is not set",
            hint="start the training with torchrun, or unset RANK and WORLD_SIZE",
        )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, timeout=_TIMEOUT)
    try:
        ranks = Ranks(rank, world)
        others = [peer for peer in ranks.gathered(Peer.current(rank)) if peer.rank != rank]
        try:
            yield ranks
        except Exception as error:
            if not is_lost_connection(error):
                raise
            raise _lost(find_ended(others, within_s=_ENDING_S), rank) from error
    finally:
        distributed.destroy_process_group()


def _lost(peer: Peer | None, rank: int) -> FeedlineError:
    """The error of a rank that has lost another one."""
    name = "a rank on another machine, or one whose process still runs,"
    if peer is not None:
        name = f"rank {peer.rank} (process {peer.pid} on {peer.host})"
    return FeedlineError(
        f"{name} does not respond; rank {rank} ends as well",
        hint="its own output has the cause; a process killed without a message mostly ran out of "
        "memory. --resume continues from the last checkpoint; --debug shows torch's error",
    )


@dataclass(frozen=True, slots=True)
class Peer:
    """The process of a rank.

    Args:
        rank: its number.
        host: machine it runs on.
        pid: process id there.
        started_s: start time of the process, seconds since 1970.
    """

    rank: int
    host: str
    pid: int
    started_s: float

    @classmethod
    def current(cls, rank: int) -> Peer:
        """This process."""
        return cls(rank, platform.node(), os.getpid(), psutil.Process().create_time())

    @property
    def has_ended(self) -> bool:
        """True if it has ended; False for a process on another machine."""
        if self.host != platform.node():
            return False
        with contextlib.suppress(psutil.AccessDenied):
            try:
                process = psutil.Process(self.pid)
                same = process.create_time() == self.started_s
                return not same or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            except psutil.NoSuchProcess:
                return True
        return False


def is_lost_connection(error: BaseException) -> bool:
    """Return True if an error comes from the connection between ranks."""
    if isinstance(error, FeedlineError):
        return False
    text = str(error).lower()
    lost = isinstance(error, RuntimeError) and ("gloo" in text or "nccl" in text)
    return lost or isinstance(error, distributed.DistError)


def find_ended(peers: Sequence[Peer], *, within_s: float) -> Peer | None:
    """Return the first process that has ended, or None.

    Args:
        peers: the other processes.
        within_s: how long to wait for one to end.
    """
    until = time.monotonic() + within_s
    while True:
        for peer in peers:
            if peer.has_ended:
                return peer
        if time.monotonic() >= until:
            return None
        time.sleep(_POLL_S)
