"""Processes that build shards: worker processes of this machine, or a Ray cluster.

Guarantees: each shard is built once, even if processes die. When a build ends, for any reason, its
work ends as well.

Relies on: `loader`, whose workers build shards like samples: a worker that dies is replaced, and
its shard is built again. `ray_workers` for clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from feedline.cache.ray_workers import connect_ray
from feedline.cache.shard import BuiltShard, ShardDataset
from feedline.engine.defaults import worker_count
from feedline.errors import FeedlineError, UsageError
from feedline.loader import DataLoader

__all__ = ["BuildWorkers", "open_workers"]


class BuildWorkers(Protocol):
    """Processes that build shards."""

    @property
    def is_remote(self) -> bool:
        """True if they may run on other machines."""
        ...

    def count(self) -> int:
        """Number of shards that are built at a time."""
        ...

    def build(self, shards: ShardDataset) -> AbstractContextManager[Iterable[BuiltShard]]:
        """Build shards, which are returned as they finish."""
        ...


@dataclass(frozen=True)
class _LocalWorkers:
    """Local worker processes; with 0, this process."""

    processes: int
    is_remote = False

    def count(self) -> int:
        return max(1, self.processes)

    @contextmanager
    def build(self, shards: ShardDataset) -> Iterator[Iterable[BuiltShard]]:
        loader: DataLoader[BuiltShard | FeedlineError] = DataLoader(
            _WithErrors(shards),  # type: ignore[arg-type]
            batch_size=None,
            collate_fn=_identity,
            num_workers=min(self.processes, len(shards)),
            in_order=False,
        )
        with loader:
            yield map(_raise_error, loader)


class _WithErrors:
    """Shards whose errors are returned, as a loader would add a worker's traceback to them."""

    def __init__(self, shards: ShardDataset) -> None:
        self._shards = shards

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, at: int) -> BuiltShard | FeedlineError:
        try:
            return self._shards[at]
        except FeedlineError as error:
            return error


def _identity(built: Any) -> Any:
    return built


def _raise_error(built: BuiltShard | FeedlineError) -> BuiltShard:
    if isinstance(built, FeedlineError):
        raise built
    return built


def open_workers(workers: int | str, ray: str | None) -> AbstractContextManager[BuildWorkers]:
    """Open the worker processes, or the Ray cluster.

    Args:
        workers: number of processes on this machine, or "auto" for one per usable core.
        ray: address of a Ray cluster; None for worker processes.

    Raises:
        UsageError: both are given, one is invalid, or there is no such cluster.
    """
    if ray is None:
        return nullcontext(_LocalWorkers(worker_count(workers)))
    if workers != "auto":
        raise UsageError(
            f"{workers!r} is a number of local processes, but Ray ({ray!r}) uses all CPUs of the "
            "cluster; remove one of them",
            argument="workers",
        )
    return connect_ray(ray)
