"""Who makes the units of a build: worker processes of this machine, or a Ray cluster.

Guarantees: each unit is made once, whoever dies meanwhile; when a build ends, however it does, so
does all work on it.

Relies on: `loader`, whose workers make units as they would read samples: one that dies is replaced,
and its unit is made once more. `ray_makers` for clusters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from feedline.cache.ray_makers import connected
from feedline.cache.unit import Made, Units
from feedline.errors import FeedlineError, UsageError
from feedline.loader import DataLoader
from feedline.loader.checks import worker_count

__all__ = ["Makers", "open_makers"]


class Makers(Protocol):
    """Those who make units."""

    @property
    def elsewhere(self) -> bool:
        """Whether they may be on other machines."""
        ...

    def count(self) -> int:
        """How many work at a time."""
        ...

    def made(self, units: Units) -> AbstractContextManager[Iterable[Made]]:
        """Make units, which come as they are done."""
        ...


@dataclass(frozen=True)
class _Workers:
    """Worker processes; with 0, this process."""

    processes: int
    elsewhere = False

    def count(self) -> int:
        return max(1, self.processes)

    @contextmanager
    def made(self, units: Units) -> Iterator[Iterable[Made]]:
        loader: DataLoader[Made | FeedlineError] = DataLoader(
            _Told(units),  # type: ignore[arg-type]
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=min(self.processes, len(units)),
            in_order=False,
        )
        with loader:
            yield map(_raised, loader)


class _Told:
    """Units whose errors are given, where a loader would raise them with a worker's traceback."""

    def __init__(self, units: Units) -> None:
        self._units = units

    def __len__(self) -> int:
        return len(self._units)

    def __getitem__(self, at: int) -> Made | FeedlineError:
        try:
            return self._units[at]
        except FeedlineError as error:
            return error


def _as_it_is(made: Any) -> Any:
    return made


def _raised(made: Made | FeedlineError) -> Made:
    if isinstance(made, FeedlineError):
        raise made
    return made


def open_makers(workers: int | str, ray: str | None) -> AbstractContextManager[Makers]:
    """Those whom a user asks for.

    Args:
        workers: processes of this machine, or "auto" for the cores that this process may use.
        ray: the address of a Ray cluster, which then makes the units; None for the workers.

    Raises:
        UsageError: both were given, one cannot be used, or there is no such cluster.
    """
    if ray is None:
        return nullcontext(_Workers(worker_count(workers)))
    if workers != "auto":
        raise UsageError(
            f"{workers!r} is a number of processes on this machine, and Ray ({ray!r}) uses all "
            "CPUs of the cluster; leave one of the two out",
            argument="workers",
        )
    return connected(ray)
