"""The processes of one training, as torchrun has started them.

Guarantees: with a single process nothing is set up, and each of these calls is as cheap as none.
Every other call is a collective one: all ranks have to make it, in the same order. Values go
between them as torch's tensors and pickles, among processes that torchrun has started for this run.
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
        world: how many there are.
    """

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this one writes and prints."""
        return self.rank == 0

    def summed(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks; the value itself stays."""
        if self.world == 1:
            return value
        total = value.clone()
        distributed.all_reduce(total)
        return total

    def largest(self, number: int) -> int:
        """The largest of all ranks'."""
        if self.world == 1:
            return number
        found = torch.tensor(number, device="cpu")
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)

    def from_first(self, make: Callable[[], _T]) -> _T:
        """What rank 0 makes, on every rank. Where it raises, torchrun ends the others, too."""
        if self.world == 1:
            return make()
        said = [make() if self.leads else None]
        distributed.broadcast_object_list(said, src=0)
        made: Any = said[0]
        return made  # type: ignore[no-any-return]

    def gathered(self, value: _T) -> list[_T]:
        """Each rank's, by their numbers."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        distributed.all_gather_object(found, value)
        return found

    def share_buffers(self, model: nn.Module) -> None:
        """Give every rank the running statistics of rank 0."""
        if self.world > 1:
            for buffer in model.buffers():
                distributed.broadcast(buffer, src=0)

    def parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model with its gradients averaged over the ranks; itself where there is one."""
        if self.world == 1:
            return model
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids)


@contextmanager
def joined() -> Iterator[Ranks]:
    """Meet the other processes of the training, if torchrun has started some.

    Raises:
        UsageError: the environment names a rank, and not where the others are.
        FeedlineError: another rank has ended; names it where it was of this machine.
    """
    rank, world = rank_and_world()
    if world == 1 or distributed.is_initialized():
        yield Ranks(rank, world)
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
