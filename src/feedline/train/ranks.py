"""The processes of one training, started by torchrun.

Guarantees: with a single process nothing is set up and each call returns at once. With several,
every call is a collective: all ranks have to make it, in the same order. Values on the CPU are
exchanged by gloo, also where the program has set up a process group for CUDA alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from feedline.errors import FeedlineError, UsageError
from feedline.system import rank_and_world
from feedline.train.peers import Peer, ended_peer, lost_connection

__all__ = ["Ranks", "joined"]

_T = TypeVar("_T")
_SILENCE = timedelta(minutes=10)
"""How long a rank waits for another before it takes that for dead: longer than a validation's or a
checkpoint's, which rank 0 alone writes."""
_ENDING_S = 5.0
"""How long a process may take to end once its connections are closed."""


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
    def leads(self) -> bool:
        """Whether this one writes and prints."""
        return self.rank == 0

    def summed(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks; the value itself stays."""
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

    def from_first(self, make: Callable[[], _T]) -> _T:
        """What rank 0 makes, on every rank. Where it raises, torchrun ends the others, too."""
        if self.world == 1:
            return make()
        said = [make() if self.leads else None]
        distributed.broadcast_object_list(said, src=0, group=self.group)
        made: Any = said[0]
        return made  # type: ignore[no-any-return]

    def gathered(self, value: _T) -> list[_T]:
        """Each rank's, by their numbers."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, value, group=self.group)
        return found

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank the running statistics of rank 0."""
        if self.world > 1:
            for buffer in model.buffers():
                group = self.group if buffer.device.type == "cpu" else None
                distributed.broadcast(buffer, src=0, group=group)

    def parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model with its gradients averaged over the ranks; itself where there is one."""
        if self.world == 1:
            return model
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the other processes of the training, if torchrun has started any.

    A process group that the program has set up is used, with a gloo group beside it.

    Raises:
        UsageError: the environment names a rank, and not where the others are.
        FeedlineError: another rank has ended; names it where it was of this machine.
    """
    rank, world = rank_and_world()
    if world == 1:
        yield Ranks(rank, world)
        return
    if distributed.is_initialized():
        group: Any = distributed.new_group(backend="gloo", timeout=_SILENCE)
        try:
            yield Ranks(rank, world, group)
        finally:
            distributed.destroy_process_group(group)
        return
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UsageError(
            f"this is rank {rank} of {world}, and {', '.join(missing)} is not set, so the others "
            "cannot be found; start the training with torchrun, or unset RANK and WORLD_SIZE"
        )
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, timeout=_SILENCE)
    try:
        ranks = Ranks(rank, world)
        others = [peer for peer in ranks.gathered(Peer.here(rank)) if peer.rank != rank]
        try:
            yield ranks
        except Exception as error:
            if not lost_connection(error):
                raise
            raise FeedlineError(_lost(ended_peer(others, within_s=_ENDING_S), rank)) from error
    finally:
        distributed.destroy_process_group()


def _lost(peer: Peer | None, rank: int) -> str:
    """What to say of a rank that the others have lost."""
    who = "a rank whose process is not on this machine, or still runs,"
    if peer is not None:
        who = f"rank {peer.rank} (process {peer.pid} on {peer.host})"
    return (
        f"{who} no longer answers, so rank {rank} ends, too. What was wrong with it is said where "
        "it wrote its own output; one that was killed without a word mostly lacked memory. "
        "--resume goes on from the last checkpoint; --debug shows torch's error"
    )
