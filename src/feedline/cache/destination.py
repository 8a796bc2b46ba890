"""Where a cache is built.

Guarantees: one builder at a time works there; what is there before the end is never taken for a
cache.

Relies on: `stores.cache_lock` for one builder at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from feedline.cache.delivery import Delivery, Files, InPlace, ToBuilder
from feedline.cache.remote_destination import RemoteDestination
from feedline.cache.source import Source
from feedline.cache.whole_file import files_to_disk, write_whole
from feedline.remote.filesystem import is_url
from feedline.stores.cache_layout import read_manifest
from feedline.stores.cache_lock import only_builder
from feedline.stores.cache_place import check_place

__all__ = ["Destination", "open_destination"]


class Destination(Protocol):
    """Where a cache's files go."""

    @property
    def root(self) -> str:
        """The folder of this machine in which the builder works, once it is open."""
        ...

    @property
    def name(self) -> str:
        """What the user calls it: a path or a URL."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether all that is made stays in that folder."""
        ...

    def check_free(self, source: Source, format: str) -> None:
        """See whether a cache of a source may be built here.

        Raises:
            UsageError: it may not, or not in this format.
        """
        ...

    def check_cache(self) -> None:
        """See whether a finished cache is here.

        Raises:
            DatasetError: none is.
        """
        ...

    def opened(self) -> AbstractContextManager[object]:
        """Work here, where no other builder does.

        Raises:
            UsageError: one does.
        """
        ...

    def delivery(self, elsewhere: bool) -> Delivery:
        """Where those who make units put the files; `elsewhere` they may be other machines."""
        ...

    def accept(self, files: Files) -> None:
        """Put the files of a unit in their places."""
        ...

    def publish(self) -> None:
        """Have all that the builder itself has written to the folder, or removed there, in its
        place: so much is kept if the build is broken off. Done once more at the end.
        """
        ...


class _Folder:
    """A folder of this machine's file system."""

    keeps = True

    def __init__(self, root: str, token: str) -> None:
        self.root = self.name = root
        self._token = token

    def check_free(self, source: Source, format: str) -> None:
        check_place(self.root, None if source.kind in ("dataset", "files") else source.where)

    def check_cache(self) -> None:
        read_manifest(self.root)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        if self._token:
            yield
            return
        with only_builder(self.root) as self._token:
            yield

    def delivery(self, elsewhere: bool) -> Delivery:
        return ToBuilder(self._token) if elsewhere else InPlace()

    def accept(self, files: Files) -> None:
        if not files:
            return  # it was made in its place
        *made, (record, columns) = ((Path(self.root, name), data) for name, data in files)
        for path, data in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, data, durable=False)
        files_to_disk(self.root, [path for path, _ in made])
        write_whole(record, columns)

    def publish(self) -> None:
        pass


def open_destination(given: Any, token: str = "") -> Destination:
    """The destination that a user names.

    Args:
        given: the path of a folder, or a URL.
        token: of a folder's lock, if this process holds it already.
    """
    if is_url(given):
        return RemoteDestination(given)
    return _Folder(os.path.abspath(os.path.expanduser(os.fspath(given))), token)
