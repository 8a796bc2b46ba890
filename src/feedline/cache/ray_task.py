"""What a node of a Ray cluster does: makes one unit.

Guarantees: a node that does not see the source says so; its images are not taken for broken ones.

Relies on: Ray, which pickles between the processes of its cluster, as is its way.
"""

from __future__ import annotations

import functools
import os
import socket
from typing import Any

from feedline.cache.unit import Made, Units
from feedline.engine.process import limit_threads
from feedline.errors import DatasetError

__all__ = ["make_here"]


def make_here(units: Any, at: int) -> Made:
    """Make a unit on this node, in one thread.

    Args:
        units: a reference of Ray's to `Units`.
        at: which of them.

    Raises:
        DatasetError: the source is not to be seen here, or a store is out of reach from here.
        ImageError: an image is broken, and may not be left out; names it.
    """
    limit_threads()
    taken = _taken(units)
    try:
        _check_source(taken, at)
        return taken[at]
    except DatasetError as error:
        node = socket.gethostname()
        raise DatasetError(f"on the node {node} of the Ray cluster: {error}") from error


@functools.lru_cache(maxsize=1)
def _taken(units: Any) -> Units:
    """The units, unpickled once a process and not once a unit."""
    import ray

    taken: Units = ray.get(units)
    return taken


def _check_source(units: Units, at: int) -> None:
    """See whether any file of a unit is to be seen here."""
    unit = units.units[at]
    path = units.source.path(unit.start)
    if path and not any(
        os.path.exists(units.source.path(sample)) for sample in range(unit.start, unit.stop)
    ):
        raise DatasetError(
            f"{path!r} is not to be seen, of which copies are to be made: every node needs the "
            "source at the same path. Mount it there"
        )
