"""Builds a shard on a node of a Ray cluster, which imports this module by its name.

Guarantees: a node that does not see the source raises an error; its images do not count as broken.

Relies on: Ray, which pickles between the processes of its cluster.
"""

from __future__ import annotations

import functools
import os
import socket
from typing import Any

from feedline.cache.shard import BuiltShard, ShardDataset
from feedline.engine.process import limit_threads
from feedline.errors import DatasetError

__all__ = ["build_on_node"]


def build_on_node(shards: Any, at: int) -> BuiltShard:
    """Build a shard on this node, in one thread.

    Args:
        shards: Ray's reference to the `ShardDataset`.
        at: number of the shard.

    Raises:
        DatasetError: the source is missing on this node, or a store is unreachable from it.
        ImageError: an image is broken and may not be skipped; names it.
    """
    limit_threads()
    fetched = _fetch_shards(shards)
    try:
        _check_source(fetched, at)
        return fetched[at]
    except DatasetError as error:
        node = socket.gethostname()
        raise DatasetError.of(error, f"on the node {node} of the Ray cluster") from error


@functools.lru_cache(maxsize=1)
def _fetch_shards(shards: Any) -> ShardDataset:
    """Fetch and unpickle the shards once per process."""
    import ray

    fetched: ShardDataset = ray.get(shards)
    return fetched


def _check_source(shards: ShardDataset, at: int) -> None:
    """Check that some file of a shard exists on this node."""
    shard = shards.shards[at]
    path = shards.source.path(shard.start)
    if path and not any(
        os.path.exists(shards.source.path(sample)) for sample in range(shard.start, shard.stop)
    ):
        raise DatasetError(
            f"{path!r} does not exist here",
            hint="mount the source at the same path on every node",
        )
