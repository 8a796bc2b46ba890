"""Storage of a cache that is built: a folder, or a URL.

Guarantees: one builder at a time; an unfinished cache is never mistaken for a finished one.

Relies on: `sources.cache_lock` for the lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from feedline.cache.atomic_write import sync_files, write_atomic
from feedline.cache.delivery import BuilderDelivery, Delivery, LocalDelivery, ShardFiles
from feedline.cache.remote_destination import RemoteDestination
from feedline.cache.source import CacheSource
from feedline.remote.filesystem import is_url
from feedline.sources.cache_layout import read_manifest
from feedline.sources.cache_lock import only_builder
from feedline.sources.cache_place import check_place

__all__ = ["Destination", "open_destination"]


class Destination(Protocol):
    """Storage of a cache's files."""

    @property
    def root(self) -> str:
        """Folder of this machine in which the builder works, once it is open."""
        ...

    @property
    def name(self) -> str:
        """Path or URL given by the user."""
        ...

    @property
    def is_local(self) -> bool:
        """True if all files stay in that folder."""
        ...

    def check_available(self, source: CacheSource, format: str) -> None:
        """Check that a cache of a source may be built here.

        Raises:
            UsageError: the place is used otherwise, or the format is not supported.
        """
        ...

    def check_cache(self) -> None:
        """Check that a finished cache is here.

        Raises:
            DatasetError: there is none.
        """
        ...

    def lock(self) -> AbstractContextManager[object]:
        """Context in which no other builder may work here.

        Raises:
            UsageError: another builder is running.
        """
        ...

    def delivery(self, is_remote: bool) -> Delivery:
        """Return the delivery for build workers, which may run on other machines (`is_remote`)."""
        ...

    def store_files(self, files: ShardFiles) -> None:
        """Store the files of a shard."""
        ...

    def publish(self) -> None:
        """Store everything that the builder itself wrote to the folder, or removed there, so that
        it is kept if the build is interrupted. Called again at the end.
        """
        ...


class _Folder:
    """A folder of a local file system."""

    is_local = True

    def __init__(self, root: str, token: str) -> None:
        self.root = self.name = root
        self._token = token

    def check_available(self, source: CacheSource, format: str) -> None:
        check_place(self.root, None if source.kind in ("dataset", "files") else source.where)

    def check_cache(self) -> None:
        read_manifest(self.root)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        if self._token:
            yield
            return
        with only_builder(self.root) as self._token:
            yield

    def delivery(self, is_remote: bool) -> Delivery:
        return BuilderDelivery(self._token) if is_remote else LocalDelivery()

    def store_files(self, files: ShardFiles) -> None:
        if not files:
            return  # built in place
        *made, (record, columns) = ((Path(self.root, name), data) for name, data in files)
        for path, data in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data, durable=False)
        sync_files(self.root, [path for path, _ in made])
        write_atomic(record, columns)

    def publish(self) -> None:
        pass


def open_destination(given: Any, token: str = "") -> Destination:
    """Open the destination of a path or URL.

    Args:
        given: path of a folder, or a URL.
        token: token of the folder's lock, if this process holds it already.
    """
    if is_url(given):
        return RemoteDestination(given)
    return _Folder(os.path.abspath(os.path.expanduser(os.fspath(given))), token)
