"""The processes of a training's other ranks, and which of them has ended.

Guarantees: only a process that is gone is named. Relies on: psutil, so only ranks of this machine
can be looked at.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from torch import distributed

from feedline.errors import FeedlineError

__all__ = ["Peer", "ended_peer", "lost_connection"]

_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Peer:
    """A process.

    Args:
        rank: its number.
        host: the machine it runs on.
        pid: its number there.
    """

    rank: int
    host: str
    pid: int

    @classmethod
    def here(cls, rank: int) -> Peer:
        """This process."""
        return cls(rank, platform.node(), os.getpid())

    @property
    def has_ended(self) -> bool:
        """Whether it is gone; False of a process of another machine, of which nothing is known."""
        if self.host != platform.node():
            return False
        try:
            # A process that has ended is there until its parent has asked how.
            return psutil.Process(self.pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False


def lost_connection(error: BaseException) -> bool:
    """Whether an error is that of a connection between ranks, and of no code of this process's."""
    if isinstance(error, FeedlineError):
        return False
    said = str(error).lower()
    lost = isinstance(error, RuntimeError) and ("gloo" in said or "nccl" in said)
    return lost or isinstance(error, distributed.DistError)


def ended_peer(peers: Sequence[Peer], *, within_s: float) -> Peer | None:
    """The first of these that is gone.

    Args:
        peers: the other processes.
        within_s: how long to look: one that raises an error closes its connections before it ends.
    """
    until = time.monotonic() + within_s
    while True:
        for peer in peers:
            if peer.has_ended:
                return peer
        if time.monotonic() >= until:
            return None
        time.sleep(_EVERY_S)
