"""The processes of one training, started by torchrun, and their agreement on a stop.

With a single process nothing is set up and each call returns at once. With several, every call is
a collective: all ranks have to make it, in the same order. Values on the CPU are exchanged by gloo,
also if the program has set up a process group for CUDA alone.

A stop is requested by Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 or Ctrl-Break, and checked between two
steps.
Guarantees: the first signal is recorded and reported at once, also while a step runs C code. A
second one has its original effect, so a stuck step can be left; if Python loses the exception, as
in a destructor, the next check raises it. SIGHUP counts once, because a shell and the kernel both
send it when a terminal closes. The original handlers are restored at the end.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from feedline.errors import FeedlineError, UsageError
from feedline.system import rank_and_world, signals_to_handle

CHECK_S = 1.0
"""How often ranks agree on a stop."""

_T = TypeVar("_T")
_MOST_CALLS = 1000
_TIMEOUT = timedelta(minutes=10)
"""Longest wait for another rank: longer than a validation, or a checkpoint written by rank 0."""

# Batch systems send SIGUSR1 some time before they end a job; Windows has SIGBREAK instead.
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGBREAK")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the training."""

    rank: int = 0
    world: int = 1
    group: distributed.ProcessGroup | None = None
    """For values on the CPU; None for the default group."""

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
                distributed.broadcast(buffer, src=0, group=self._group_of(buffer.device))

    def parallel(self, model: nn.Module, device: torch.device) -> nn.Module:
        """The model with its gradients averaged over the ranks."""
        if self.world == 1:
            return model
        ids = [device.index] if device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, process_group=self._group_of(device))

    def _group_of(self, device: torch.device) -> distributed.ProcessGroup | None:
        return self.group if device.type == "cpu" else None


class StopRequest:
    """Records these signals while it is entered; outside the main thread it records none.

    `report` is called with the number of the first signal, from another thread: Python's handlers
    run in the main thread, which may be in a backward pass for seconds.
    """

    def __init__(self, report: Callable[[int], object] = lambda signum: None) -> None:
        self._signum: int | None = None
        self._raised: BaseException | None = None
        self._report = report
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._waker: socket.socket | None = None
        self._watcher: threading.Thread | None = None

    def requested(self) -> int | None:
        """The first signal; None before any. Raises what a second one raised, if Python lost it."""
        if self._raised is not None:
            raise self._raised
        return self._signum

    def _record(self, signum: int, frame: FrameType | None) -> None:
        before = self._before[signum]
        if self._signum is None:
            self._signum = signum
            return
        if signal.Signals(signum).name == "SIGHUP":
            return
        self._restore()
        if not callable(before):  # the process ends, or nothing is to happen
            signal.raise_signal(signum)
            return
        try:
            before(signum, frame)
        except BaseException as error:
            self._raised = error
            raise

    def _restore(self) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            listening, self._waker = socket.socketpair()
            self._waker.setblocking(False)
            signals = signals_to_handle(*_SIGNALS)
            arguments = listening, signals
            self._watcher = threading.Thread(target=self._watch, args=arguments, daemon=True)
            self._watcher.start()
            self._wakeup_before = signal.set_wakeup_fd(self._waker.fileno())
            self._before = {each: signal.signal(each, self._record) for each in signals}
        return self

    def __exit__(self, *exc: object) -> None:
        self._restore()
        if self._waker is not None and self._watcher is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            self._waker.close()
            self._watcher.join()

    def _watch(self, listening: socket.socket, handled: Collection[int]) -> None:
        """Report the first signal that C code records, until the other end is closed."""
        reported = False
        with listening:
            while numbers := listening.recv(64):
                signums = [number for number in numbers if number in handled]
                if signums and not reported:
                    reported = True
                    self._report(signums[0])


class AgreedStop:
    """A stop request of any rank, seen by all ranks at the same step.

    Several ranks exchange their requests about once a second, so that no rank waits for the others
    at every step; the number of calls until the next exchange is agreed on as well.
    """

    def __init__(self, request: StopRequest, ranks: Ranks) -> None:
        self._request = request
        self._ranks = ranks
        self._signum: int | None = None
        self._calls, self._next = 0, 1
        self._checked_s = time.monotonic()

    def requested(self, *, at_end: bool = False) -> int | None:
        """The signal that asks for a stop, or None; `at_end` exchanges requests in any case."""
        own = self._request.requested()
        if self._ranks.world == 1:
            return own
        self._calls += 1
        if self._signum is None and (at_end or self._calls >= self._next):
            now_s = time.monotonic()
            fit = int(CHECK_S * self._calls / max(now_s - self._checked_s, 1e-9))
            # The next calls may take another time: steps after a validation, at another size.
            wanted = 1 if at_end else max(1, min(fit, _MOST_CALLS))
            found = torch.tensor([own or 0, -wanted], device="cpu")
            distributed.all_reduce(found, distributed.ReduceOp.MAX, group=self._ranks.group)
            signum, self._next = int(found[0]), -int(found[1])
            self._signum = signum or None
            self._calls, self._checked_s = 0, now_s
        return self._signum


@contextmanager
def join_ranks() -> Iterator[Ranks]:
    """Join the other processes of the training, if torchrun has started any.

    A process group that the program has set up is used, with a gloo group for values on the CPU.
    FeedlineError if another rank has ended.
    """
    rank, world = rank_and_world()
    if world == 1:
        yield Ranks(rank, world)
        return
    with ExitStack() as stack:
        group: Any = None
        if distributed.is_initialized():
            group = distributed.new_group(backend="gloo", timeout=_TIMEOUT)
        else:
            missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
            if missing:
                raise UsageError(
                    f"this is rank {rank} of {world}, but {', '.join(missing)} is not set",
                    hint="start the training with torchrun, or unset RANK and WORLD_SIZE",
                )
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            distributed.init_process_group(backend, timeout=_TIMEOUT)
        stack.callback(distributed.destroy_process_group, group)
        try:
            yield Ranks(rank, world, group)
        except RuntimeError as error:
            by_name = re.search("gloo|nccl", str(error), re.IGNORECASE)
            lost = isinstance(error, distributed.DistError) or by_name
            if isinstance(error, FeedlineError) or not lost:
                raise
            raise FeedlineError(
                f"another rank does not respond; rank {rank} ends as well",
                hint="torchrun's summary names the rank, and its own output has the cause; one "
                "killed by SIGKILL (exitcode -9) mostly ran out of memory. --resume continues from "
                "the last checkpoint; --debug shows torch's error",
            ) from error
