"""Transfer of a shard's files to the cache, from this process or from another machine.

Guarantees: a shard's record is stored after all its other files, also after a power cut. An
interrupted shard leaves no temporary folder, unless its process is killed.

Relies on: the builder, which stores the files that it receives in their order.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from feedline.cache.records import Columns, encode_record, record_name, write_record
from feedline.cache.settings import Spec
from feedline.remote.folder import RemoteFolder
from feedline.sources.cache_lock import sees_lock

__all__ = [
    "BuilderDelivery",
    "Delivery",
    "LocalDelivery",
    "ShardFiles",
    "StoreDelivery",
    "list_files",
    "make_level_folders",
]

ShardFiles: TypeAlias = "list[tuple[str, bytes | np.ndarray[Any, Any]]]"
"""File names relative to the cache's folder and their contents; the record is last."""

BuildShardFiles: TypeAlias = Callable[[Spec], Columns]
"""Builds a shard's files in the folder of a spec and returns the columns of its record."""


class Delivery(Protocol):
    """A way to deliver shards. Pickled, and sent to every process that builds shards."""

    def deliver(self, spec: Spec, shard: int, make: BuildShardFiles) -> ShardFiles:
        """Build a shard. Return the files that the builder must still store."""
        ...


@dataclass(frozen=True)
class LocalDelivery:
    """Builds a shard in the cache's folder."""

    def deliver(self, spec: Spec, shard: int, make: BuildShardFiles) -> ShardFiles:
        """Build a shard and write its record."""
        write_record(spec, shard, make(spec))
        return []


@dataclass(frozen=True)
class BuilderDelivery:
    """Builds a shard in the cache's folder if this machine sees it, and else returns its files.

    Args:
        token: text that the builder wrote to its lock.
    """

    token: str

    def deliver(self, spec: Spec, shard: int, make: BuildShardFiles) -> ShardFiles:
        """Build a shard; its record is always returned."""
        files: ShardFiles = []
        if sees_lock(spec.root, self.token):
            make_level_folders(spec)
            record = make(spec)
        else:
            with temporary_spec(spec) as there:
                record = make(there)
                files = [
                    (name, np.fromfile(path, np.uint8)) for name, path in list_files(there.root)
                ]
        return [*files, (record_name(spec, shard), encode_record(record))]


@dataclass(frozen=True)
class StoreDelivery:
    """Builds a shard in a temporary folder and uploads its files.

    Args:
        there: the cache's folder in the store.
    """

    there: RemoteFolder

    def deliver(self, spec: Spec, shard: int, make: BuildShardFiles) -> ShardFiles:
        """Build a shard; its record is uploaded last and returned, too."""
        with temporary_spec(spec) as here:
            record = encode_record(make(here))
            for name, path in list_files(here.root):
                self.there.put(name, path)
            file = Path(here.root, "record.npz")
            file.write_bytes(record)
            self.there.put(record_name(spec, shard), file)
        return [(record_name(spec, shard), record)]


@contextlib.contextmanager
def temporary_spec(spec: Spec) -> Iterator[Spec]:
    """Context with a spec for building in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="feedline-") as folder:
        there = replace(spec, root=folder)
        make_level_folders(there)
        yield there


def make_level_folders(spec: Spec) -> None:
    """Create the missing folders of the resolutions."""
    for level in spec.levels:
        os.makedirs(os.path.join(spec.root, level.name), exist_ok=True)


def list_files(root: str) -> list[tuple[str, Path]]:
    """List the files below a folder: relative names and paths."""
    found = sorted(path for path in Path(root).rglob("*") if path.is_file())
    return [(path.relative_to(root).as_posix(), path) for path in found]
