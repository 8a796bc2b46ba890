"""Makes units by the tasks of a Ray cluster.

Guarantees: at most two units for each CPU of the cluster are under way or wait to be put in their
places, whatever their number; a unit that is lost with a node or a process is made once more, by
Ray or by another task of ours; when a build ends, however it does, its tasks have ended, or Ray was
told to kill them; a connection that others have made is not closed; no cluster is started unasked;
a node without feedline, or with another version, is an error that says so.

Relies on: Ray, imported here and only when a cluster is asked for; `ray_task` for what a node does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from feedline import __version__
from feedline.cache.unit import Made, Units
from feedline.errors import UsageError, WorkerError

__all__ = ["RayMakers", "connected"]

_UNITS_PER_CPU = 2  # one is made, one waits, so that a CPU has work at once
_LEAST_UNITS = 2  # so that a cluster that grows on demand sees some
_RETRIES = 3  # by Ray itself, for each of our tries
_TRIES = 3
_LOOK_S = 30.0
_CONNECT_S = 10.0
_CANCEL_S = 20.0  # for tasks to notice that they are cancelled, and then to be killed

_log = logging.getLogger("feedline")


@contextlib.contextmanager
def connected(address: str) -> Iterator[RayMakers]:
    """The tasks of a cluster, connected to for as long as the context lasts.

    Args:
        address: "HOST:PORT"; "auto" for the cluster of $RAY_ADDRESS, or the one that runs on this
            machine; "local" to start one here. Not looked at where Ray is connected already.

    Raises:
        UsageError: Ray is not installed, or there is no such cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"a build on a Ray cluster needs the package ray, which is not there ({error}): "
            'pip install "feedline[ray]"'
        ) from error
    if ray.is_initialized():
        yield RayMakers(ray)
        return
    _connect(ray, address)
    try:
        yield RayMakers(ray)
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    asked = f"{address!r} was requested"
    named = address
    if address == "auto" and (told := os.environ.get("RAY_ADDRESS")):
        named = told
        asked += f", and $RAY_ADDRESS is {named!r}"
    elif address == "auto" and (found := _found_here()):
        named = found
        asked += f", and a cluster of this machine has the address {named!r}"
    _check_listens(named, asked)
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(
            f"{asked}, and no Ray cluster can be connected to: {str(error).rstrip('.')}. Start one "
            "(`ray start --head` here, `ray start --address=HOST:PORT` on the other machines), or "
            "name one",
            argument="ray",
            fix={"ray": "HOST:PORT"},
        ) from error
    finally:
        if in_main and before is not None:  # Ray has put one of its own in its place
            signal.signal(signal.SIGTERM, before)


def _found_here() -> str | None:
    """The address of the cluster of this machine that Ray would take, or None.

    It may be one that has ended: its address stays in a file, and in processes about to end. Ray
    has no public call for it. Where a version of Ray moves this one, Ray finds out by itself.
    """
    try:
        from ray._private.services import canonicalize_bootstrap_address

        found: str | None = canonicalize_bootstrap_address("auto")
    except (ImportError, AttributeError, ConnectionError):
        return None
    return found


def _check_listens(named: str, asked: str) -> None:
    """See whether anything listens at an address: Ray would try for many minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/\[\]]+)\]?:(\d+)", named)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"{asked}, and nothing there accepts a connection: {error}",
            argument="ray",
            hint="check that the cluster runs, and its address with `ray status`",
        ) from error


@dataclass(frozen=True)
class RayMakers:
    """The tasks of the cluster that `ray`, the module, is connected to."""

    ray: Any
    elsewhere = True

    def count(self) -> int:
        """How many CPUs the cluster has at the moment, at least 1."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 0)))

    def made(self, units: Units) -> AbstractContextManager[Iterator[Made]]:
        """Make units, which come as they are done."""
        return contextlib.closing(self._made(units))

    def _made(self, units: Units) -> Generator[Made, None, None]:
        ray = self.ray
        shared = [self._shared(units)]  # in a list, or each task would be given a copy of its own
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_task(__version__))
        waiting, tries = deque(range(len(units))), Counter[int]()
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                most = max(_LEAST_UNITS, _UNITS_PER_CPU * self.count())
                while waiting and len(running) < most:
                    at = waiting.popleft()
                    running[task.remote(shared, at)] = at
                done, _ = ray.wait(list(running), timeout=_LOOK_S)
                if not done:
                    self._look()
                for each in done:
                    at = running.pop(each)
                    made = self._result(each, units, at, tries)
                    if made is None:
                        waiting.appendleft(at)
                    else:
                        yield made
        finally:
            self._cancel(list(running))

    def _shared(self, units: Units) -> Any:
        """The units in the cluster's object store."""
        try:
            return self.ray.put(units)
        except Exception as error:  # what a dataset's own pickling raises
            cause = error.__cause__ or error  # Ray puts a long text of its own around it
            raise UsageError(
                f"{units.source.where!r} cannot be sent to the nodes of the Ray cluster: "
                f"{type(cause).__name__}: {cause}. A dataset is pickled for that: keep open files, "
                "locks and connections out of it, or build without ray"
            ) from error

    def _result(self, each: Any, units: Units, at: int, tries: Counter[int]) -> Made | None:
        """What a task has made; None where it was lost and is to be tried again."""
        errors = self.ray.exceptions
        try:
            made: Made | str = self.ray.get(each)
        except errors.RayTaskError as error:  # raised by the task itself
            raise error.cause or error from error
        except errors.RayError as error:
            tries[at] += 1
            unit = units.units[at]
            said = f"{type(error).__name__}: {error}"
            if tries[at] < _TRIES:
                _log.warning("unit %d is made once more: %s", unit.number, said)
                return None
            raise WorkerError(
                f"samples {unit.start} to {unit.stop - 1} of {units.source.where!r} were lost with "
                f"the process that made copies of them, {_TRIES} times over; the last time: {said}."
                " An image that crashes its decoder, or nodes with too little memory?"
            ) from error
        if isinstance(made, str):
            raise UsageError(made)
        return made

    def _look(self) -> None:
        if not self.ray.cluster_resources().get("CPU"):
            _log.warning("the Ray cluster has no CPU at the moment; waiting for it to grow")

    def _cancel(self, running: list[Any]) -> None:
        """End tasks: those that do not by themselves are killed."""
        for forced in (False, True):
            for each in running:
                self.ray.cancel(each, force=forced)
            if running:
                _, running = self.ray.wait(
                    running, num_returns=len(running), timeout=_CANCEL_S, fetch_local=False
                )


def _task(version: str) -> Callable[[list[Any], int], Any]:
    """A task that makes a unit: a function of `[units]`, a reference of Ray's, and a number.

    It gives a `Made`, or what is wrong with its node, as text.

    Args:
        version: of feedline, which the node must have.
    """

    # Ray pickles it by value, as it is no module's own: it runs where there is no feedline, too.
    def make(units: list[Any], at: int) -> Any:
        import signal
        import socket

        # Ray cancels a task by an interrupt. One within `import torch` would leave a process that
        # can never import it again, for tasks to come: it waits until the imports are done.
        interrupts: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
        try:
            import feedline
            from feedline.cache.ray_task import make_here

            there = f"feedline {feedline.__version__}"
        except ImportError as error:
            there = f"no feedline ({error})"
        finally:
            signal.signal(signal.SIGINT, before)
        if interrupts:
            raise KeyboardInterrupt
        if there != f"feedline {version}":
            return (
                f"the node {socket.gethostname()} of the Ray cluster has {there}, and the build is "
                f"feedline {version}'s: install this version on each node"
            )
        return make_here(units[0], at)

    return make
