"""Building of shards by tasks of a Ray cluster.

Guarantees: at most two shards per CPU of the cluster are in flight. A shard that is lost with a
node or process is built again by Ray. When a build ends, for any reason, its tasks have ended, or
Ray was told to kill them. An existing connection is not closed; no cluster is started unless
requested. A node without feedline, with another version, or that does not see the source raises an
error that names it.

Relies on: Ray, imported only if a cluster is requested. Nodes import this module by its name.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from feedline import __version__
from feedline.cache.shard import BuiltShard, ShardDataset
from feedline.engine.process import limit_threads
from feedline.errors import DatasetError, UsageError, WorkerError

_SHARDS_PER_CPU = 2  # one is built, one waits, so that a CPU is never idle
_MIN_SHARDS = 2  # so that a cluster that scales on demand sees some
_RETRIES = 8  # of a shard whose process or node ended
_LOOK_S = 30.0
_CONNECT_S = 10.0
_CANCEL_S = 20.0  # for tasks to notice that they are cancelled, and then to be killed

_log = logging.getLogger("feedline")


@contextlib.contextmanager
def connect_ray(address: str) -> Iterator[RayWorkers]:
    """Context of a connection to a cluster at "HOST:PORT"; "auto" for $RAY_ADDRESS or the cluster
    of this machine; "local" starts one here. The address is ignored if Ray is already connected.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"building on a Ray cluster needs the package ray ({error})",
            hint='pip install "feedline[ray]"',
        ) from error
    if ray.is_initialized():
        yield RayWorkers(ray)
        return
    _connect(ray, address)
    try:
        yield RayWorkers(ray)
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    requested = f"{address!r} was requested"
    actual = address
    if address == "auto" and (variable := os.environ.get("RAY_ADDRESS")):
        actual = variable
        requested += f", and $RAY_ADDRESS is {actual!r}"
    elif address == "auto" and (found := _local_address()):
        actual = found
        requested += f", and a cluster of this machine has the address {actual!r}"
    _check_listens(actual, requested)
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UsageError(
            f"{requested}, but no Ray cluster can be reached: {str(error).rstrip('.')}",
            argument="ray",
            hint="start one (`ray start --head` here, `ray start --address=HOST:PORT` on the other "
            "machines), or pass its address",
            fix={"ray": "HOST:PORT"},
        ) from error
    finally:
        if in_main and before is not None:  # Ray has replaced it
            signal.signal(signal.SIGTERM, before)


def _local_address() -> str | None:
    """Return the address of this machine's cluster that Ray would use, or None.

    The cluster may have ended: its address stays in a file, and in processes about to end. Ray has
    no public function for it; if a version of Ray moves this one, Ray searches by itself.
    """
    try:
        from ray._private.services import canonicalize_bootstrap_address

        found: str | None = canonicalize_bootstrap_address("auto")
    except (ImportError, AttributeError, ConnectionError):
        return None
    return found


def _check_listens(address: str, requested: str) -> None:
    """Check that something listens at an address, as Ray would try for many minutes."""
    found = re.fullmatch(r"(?:ray://)?\[?([^/\[\]]+)\]?:(\d+)", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"{requested}, but nothing there accepts a connection: {error}",
            argument="ray",
            hint="check that the cluster runs, and its address with `ray status`",
        ) from error


@dataclass(frozen=True)
class RayWorkers:
    """Tasks of the cluster that `ray`, the module, is connected to."""

    ray: Any
    is_remote = True

    def count(self) -> int:
        """Current number of CPUs of the cluster, at least 1."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 0)))

    def build(self, shards: ShardDataset) -> AbstractContextManager[Iterator[BuiltShard]]:
        return contextlib.closing(self._build(shards))

    def _build(self, shards: ShardDataset) -> Generator[BuiltShard, None, None]:
        ray = self.ray
        shared = [self._put(shards)]  # in a list, or Ray would resolve it for each task
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_task(__version__))
        waiting = deque(range(len(shards)))
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                most = max(_MIN_SHARDS, _SHARDS_PER_CPU * self.count())
                while waiting and len(running) < most:
                    at = waiting.popleft()
                    running[task.remote(shared, at)] = at
                done, _ = ray.wait(list(running), timeout=_LOOK_S)
                if not done and not ray.cluster_resources().get("CPU"):
                    _log.warning("the Ray cluster has no CPU now; waiting for it to scale up")
                for each in done:
                    yield self._result(each, shards, running.pop(each))
        finally:
            self._cancel(list(running))

    def _put(self, shards: ShardDataset) -> Any:
        try:
            return self.ray.put(shards)
        except Exception as error:  # of a dataset's own pickling
            cause = error.__cause__ or error  # Ray wraps it in a long text
            raise UsageError(
                f"cannot send {shards.source.where!r} to the nodes of the Ray cluster: "
                f"{type(cause).__name__}: {cause}",
                hint="make the dataset picklable, without open files, locks and connections; or "
                "build without ray",
            ) from error

    def _result(self, each: Any, shards: ShardDataset, at: int) -> BuiltShard:
        errors = self.ray.exceptions
        try:
            built: BuiltShard | str = self.ray.get(each)
        except errors.RayTaskError as error:  # raised by the task itself
            raise error.cause or error from error
        except errors.RayError as error:
            shard = shards.shards[at]
            raise WorkerError(
                f"samples {shard.start} to {shard.stop - 1} of {shards.source.where!r} were lost "
                f"with their process {_RETRIES + 1} times; the last time: {type(error).__name__}: "
                f"{error}",
                hint="an image may crash its decoder, or nodes may have too little memory",
            ) from error
        if isinstance(built, str):
            raise UsageError(built)
        return built

    def _cancel(self, running: list[Any]) -> None:
        """Cancel tasks, and kill those that do not end."""
        for forced in (False, True):
            for each in running:
                self.ray.cancel(each, force=forced)
            if running:
                _, running = self.ray.wait(
                    running, num_returns=len(running), timeout=_CANCEL_S, fetch_local=False
                )


def _task(version: str) -> Callable[[list[Any], int], Any]:
    """Return a task that builds a shard, if the node has this version of feedline: a function of
    `[reference to the shards]` and a number. It returns a `BuiltShard`, or a problem of its node as
    text.
    """

    # Ray pickles it by value, as it belongs to no module: it also runs without feedline.
    def make(shards: list[Any], at: int) -> Any:
        import importlib
        import signal
        import socket

        # Ray cancels a task by an interrupt. One within `import torch` would leave a process that
        # cannot import it again: interrupts are delayed until the imports are done.
        interrupts: list[int] = []
        before = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
        try:
            import feedline

            node = importlib.import_module("feedline.cache.ray_workers")
            package = f"feedline {feedline.__version__}"
        except ImportError as error:
            package = f"no feedline ({error})"
        finally:
            signal.signal(signal.SIGINT, before)
        if interrupts:
            raise KeyboardInterrupt
        if package != f"feedline {version}":
            return (
                f"the node {socket.gethostname()} of the Ray cluster has {package}, but the build "
                f"uses feedline {version}: install this version on each node"
            )
        return node.build_on_node(shards[0], at)

    return make


def build_on_node(shards: Any, at: int) -> BuiltShard:
    """Build a shard of Ray's reference to a `ShardDataset` on this node, in one thread.

    Images of a source that is missing on this node do not count as broken: a DatasetError is
    raised.
    """
    limit_threads()
    fetched = _fetch_shards(shards)
    shard, local_path = fetched.shards[at], fetched.source.store.local_path
    try:
        paths = map(local_path, range(shard.start, shard.stop))
        if (first := local_path(shard.start)) and not any(map(os.path.exists, paths)):
            raise DatasetError(
                f"{first!r} does not exist here",
                hint="mount the source at the same path on every node",
            )
        return fetched.build(at)
    except DatasetError as error:
        node = socket.gethostname()
        raise DatasetError.of(error, f"on the node {node} of the Ray cluster") from error


@functools.lru_cache(maxsize=1)
def _fetch_shards(shards: Any) -> ShardDataset:
    """Fetch and unpickle the shards once per process."""
    import ray

    fetched: ShardDataset = ray.get(shards)
    return fetched
