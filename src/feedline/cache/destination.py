"""Storage of a cache that is built: a local folder, or a URL.

For a URL the builder works in a temporary folder, the *mirror*: it has the manifest, index and
records, and for each shard a sparse file of its size. So a build works as in a local folder. Its
changes are uploaded when it publishes; build workers upload the shards.

Guarantees: one builder at a time, in a store if it can refuse to overwrite an object. Files are
written atomically, the manifest last. An interrupted build can be continued, in a store from any
machine. A build that finished no shard leaves nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feedline.cache.shard import ShardFiles, ShardTransfer, list_files
from feedline.cache.source import CacheSource
from feedline.errors import DatasetError, FeedlineError, UsageError
from feedline.sources.cache_folder import only_builder
from feedline.sources.cache_formats import cache_format
from feedline.sources.files import sync_files, write_atomic
from feedline.sources.manifest import (
    LOCK,
    MANIFEST,
    UNFINISHED,
    Manifest,
    check_place,
    read_manifest,
)
from feedline.sources.remote_files import RemoteFolder
from feedline.sources.remote_filesystem import is_url
from feedline.system import refuse_unusable_path

_ROOM = 80  # characters of the longest name: LEVEL/shard-NUMBER.tar.UUID.partial


def open_destination(location: Any, token: str = "") -> Destination:
    """Open the destination at a path or URL. `token` is that of the lock, if it is held already."""
    if is_url(location):
        return _Store(location)
    refuse_unusable_path(location, room=_ROOM)
    return Destination(os.path.abspath(os.path.expanduser(os.fspath(location))), token)


class Destination:
    """A local folder in which a cache is built: `root` is where the builder works, once it is
    locked, `name` the path or URL from the user.
    """

    is_local = True

    def __init__(self, root: str, token: str = "") -> None:
        self.root = self.name = root
        self._token = token

    def check_available(self, source: CacheSource, format: str) -> None:
        """Raise a UsageError if a cache of a source must not be built here in a format."""
        check_place(self.root, None if source.kind in ("dataset", "files") else source.where)

    def check_cache(self) -> None:
        """Raise a DatasetError if no finished cache is here."""
        read_manifest(self.root)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Context of the only builder here; raises a UsageError if there is another one."""
        if self._token:
            yield
            return
        with only_builder(self.root) as self._token:
            yield

    @contextlib.contextmanager
    def lock_cache(self) -> Iterator[Manifest]:
        """Context of the only builder in a finished cache, with its manifest."""
        self.check_cache()  # before a lock is created there
        with self.lock():
            yield read_manifest(self.root)

    def transfer(self, is_remote: bool) -> ShardTransfer:
        """Return the transfer for build workers, which may run on other machines."""
        return ShardTransfer(token=self._token if is_remote else "")

    def store_files(self, files: ShardFiles) -> None:
        """Store the files of a shard that its transfer returned."""
        *built, (record, columns) = ((Path(self.root, name), data) for name, data in files)
        for path, data in built:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data, durable=False)
        sync_files(self.root, [path for path, _ in built])
        write_atomic(record, columns)

    def publish(self) -> None:
        """Store the builder's own changes of the folder: an interrupted build keeps them."""


_SHARD = re.compile(r"(\d+)/\d{6}\.tar")
_SMALL = re.compile(
    rf"{re.escape(MANIFEST)}|index/[\w-]+\.npy|{UNFINISHED}(-\d+)?/(\d{{6}}\.npz|settings\.json)"
)


class _Store(Destination):
    """A folder below a URL."""

    is_local = False

    def __init__(self, url: str) -> None:
        super().__init__("")
        self._store = RemoteFolder(url)
        self.name = str(self._store)
        self._published: dict[str, tuple[int, int, int]] = {}

    def check_available(self, source: CacheSource, format: str) -> None:
        if not cache_format(format).supports_remote:
            raise UsageError(
                f"format {format} is not supported by the store of {self.name!r}, which holds "
                "whole files",
                hint="use the format webdataset, or build in a local folder",
            )
        if f"{self.name}/".startswith(f"{source.where.rstrip('/')}/"):
            raise UsageError(
                f"the cache {self.name!r} would be inside its source {source.where!r}",
                hint="use another folder",
            )
        names = set(self._store.files()) - {LOCK}
        unfinished = {name for name in names if name.startswith(f"{UNFINISHED}/")}
        if names and MANIFEST not in names and not any(map(_SMALL.fullmatch, unfinished)):
            raise UsageError(
                f"{self.name!r} is not empty and not a cache: it has {min(names)!r}",
                hint="use a folder that does not exist or is empty",
            )

    def check_cache(self) -> None:
        if not self._store.has(MANIFEST):
            raise DatasetError(f"{self.name!r} is not a finished cache: it has no {MANIFEST}")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with (
            self._only_builder(),
            tempfile.TemporaryDirectory(prefix="feedline-") as self.root,
        ):
            self._create_mirror()
            try:
                yield
                self._leave()
            except BaseException as error:
                with contextlib.suppress(FeedlineError):  # raise the first error
                    self._leave()
                if isinstance(error, FeedlineError):  # with the URL instead of the mirror
                    error.args = (Exception.__str__(error).replace(self.root, self.name),)
                    error.hint = error.hint.replace(self.root, self.name)
                raise

    def transfer(self, is_remote: bool) -> ShardTransfer:
        return ShardTransfer(store=self._store)

    def store_files(self, files: ShardFiles) -> None:
        for name, data in files:  # the record, which is in the store already
            path = Path(self.root, name)
            write_atomic(path, data)
            self._published[name] = _status(path)

    def publish(self) -> None:
        files = {
            name: _status(path)
            for name, path in list_files(self.root)
            if _SMALL.fullmatch(name) or name in self._published
        }
        changed = {name for name in files if self._published.get(name) != files[name]}

        def put(name: str) -> None:
            self._store.put(name, Path(self.root, name))

        for names in (changed - {MANIFEST}, changed & {MANIFEST}):
            list(self._store.map(put, sorted(names)))
        list(self._store.map(self._store.remove, sorted(set(self._published) - set(files))))
        self._published = files

    @contextlib.contextmanager
    def _only_builder(self) -> Iterator[None]:
        since = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        owner = f"{socket.gethostname()}, process {os.getpid()}, since {since}"
        lock = f"{owner}\n{secrets.token_hex(16)}\n".encode()
        try:
            with contextlib.suppress(FileExistsError):
                self._store.create(LOCK, lock)
            # A store that cannot refuse keeps the last write.
            if (held := self._read_lock()) != lock:
                path = self._store.path(LOCK)
                other = held.decode("utf-8", "replace").partition("\n")[0]
                command = f", for S3 with `aws s3 rm {path}`" if path.startswith("s3") else ""
                raise UsageError(
                    f"another build is running in {self.name!r} ({other or 'it has just ended'})",
                    hint="wait for it, or use another folder; if it was killed, remove the object "
                    f"{path}{command}, and build again",
                )
            yield
        finally:
            # Another builder that removed and replaced it keeps it.
            with contextlib.suppress(FeedlineError):
                if self._read_lock() == lock:
                    self._store.remove(LOCK)

    def _read_lock(self) -> bytes:
        try:
            return self._store.read(LOCK)
        except FileNotFoundError:
            return b""

    def _create_mirror(self) -> None:
        listed = self._store.files()
        small = [name for name in listed if _SMALL.fullmatch(name)]
        shards = [name for name in listed if _SHARD.fullmatch(name)]
        for name in (*small, *shards):
            Path(self.root, name).parent.mkdir(exist_ok=True)
        for name in shards:
            Path(self.root, name).touch()
            os.truncate(Path(self.root, name), listed[name].size)  # needs no disk space
        for name, data in zip(small, self._store.map(self._store.read, small), strict=True):
            Path(self.root, name).write_bytes(data)
        self._published = {name: _status(path) for name, path in list_files(self.root)}

    def _leave(self) -> None:
        """Publish everything, and remove the shards of resolutions without a finished shard."""
        self.publish()
        shards = ((name, _SHARD.fullmatch(name)) for name in self._store.files())
        unused = [
            name for name, shard in shards if shard and not Path(self.root, shard[1]).is_dir()
        ]
        list(self._store.map(self._store.remove, unused))


def _status(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
