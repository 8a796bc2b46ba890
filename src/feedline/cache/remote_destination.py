"""Storage of a cache below a URL: in an object store, or another writable fsspec file system.

The builder works in a temporary folder, the *mirror* of the store: small files are complete, and
each shard is an empty file of its size. So a build works as in a local folder. Its changes are
uploaded when it publishes.

Guarantees: one builder at a time, if the store can refuse to overwrite an object. Objects are
written atomically, the manifest last. An interrupted build can be continued from any machine. A
build that finished no shard leaves nothing.

Relies on: `remote.folder` for the store; build workers that upload the shards (`StoreDelivery`).
"""

from __future__ import annotations

import contextlib
import datetime
import getpass
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from feedline.cache.atomic_write import write_atomic
from feedline.cache.delivery import Delivery, ShardFiles, StoreDelivery, list_files
from feedline.cache.source import CacheSource
from feedline.errors import DatasetError, FeedlineError, UsageError
from feedline.remote.folder import RemoteFolder
from feedline.sources.cache_layout import LOCK, MANIFEST, UNFINISHED

__all__ = ["RemoteDestination"]

_SHARD = re.compile(r"(\d+)/\d{6}\.tar")
_SMALL = re.compile(
    rf"{re.escape(MANIFEST)}|index/[\w-]+\.npy|{UNFINISHED}(-\d+)?/(\d{{6}}\.npz|settings\.json)"
)


class RemoteDestination:
    """A folder below a URL.

    Args:
        url: URL of a protocol that fsspec can write to.
    """

    is_local = False

    def __init__(self, url: str) -> None:
        self.root = ""
        self._there = RemoteFolder(url)
        self.name = self._url = str(self._there)
        self._published: dict[str, tuple[int, int, int]] = {}

    def check_available(self, source: CacheSource, format: str) -> None:
        """Check that a cache may be built here."""
        if format != "webdataset":
            raise UsageError(
                f"format {format} is not supported by the store of {self._url!r}, which holds "
                "whole files",
                hint="use the format webdataset, or build in a local folder",
            )
        if f"{self._url}/".startswith(f"{source.where.rstrip('/')}/"):
            raise UsageError(
                f"the cache {self._url!r} would be inside its source {source.where!r}",
                hint="use another folder",
            )
        names = set(self._there.files()) - {LOCK}
        unfinished = {name for name in names if name.startswith(f"{UNFINISHED}/")}
        ours = MANIFEST in names or any(map(_SMALL.fullmatch, unfinished))
        if names and not ours:
            raise UsageError(
                f"{self._url!r} is not empty and not a cache: it has {min(names)!r}",
                hint="use a new folder, or empty this one",
            )

    def check_cache(self) -> None:
        """Check that a finished cache is here."""
        if not self._there.has(MANIFEST):
            raise DatasetError(f"{self._url!r} is not a finished cache: it has no {MANIFEST}")

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Context in the mirror; no other builder may work in the store."""
        with (
            self._only_builder(),
            tempfile.TemporaryDirectory(prefix="feedline-") as self.root,
        ):
            self._fetch()
            try:
                yield
                self._leave()
            except BaseException as error:
                with contextlib.suppress(FeedlineError):  # raise the first error
                    self._leave()
                self._raise_renamed(error)

    def delivery(self, is_remote: bool) -> Delivery:
        """Return the delivery: build workers upload the shards themselves."""
        return StoreDelivery(self._there)

    def store_files(self, files: ShardFiles) -> None:
        """Write the record of a shard, which is in the store already."""
        for name, data in files:
            path = Path(self.root, name)
            write_atomic(path, data)
            self._published[name] = _state(path)

    def publish(self) -> None:
        """Upload changes of the mirror, the manifest last; then delete what was removed there."""
        there = {
            name: _state(path)
            for name, path in list_files(self.root)
            if _SMALL.fullmatch(name) or name in self._published
        }
        changed = [name for name in there if self._published.get(name) != there[name]]
        manifest = [MANIFEST] if MANIFEST in changed else []
        for names in (set(changed) - {MANIFEST}, manifest):
            list(self._there.each(self._put, sorted(names)))
        list(self._there.each(self._there.remove, sorted(set(self._published) - set(there))))
        self._published = there

    def _put(self, name: str) -> None:
        self._there.put(name, Path(self.root, name))

    @contextlib.contextmanager
    def _only_builder(self) -> Iterator[None]:
        since = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        owner = f"{_user()}@{socket.gethostname()}, process {os.getpid()}, since {since}"
        mine = f"{owner}\n{secrets.token_hex(16)}\n".encode()
        try:
            with contextlib.suppress(FileExistsError):
                self._there.create(LOCK, mine)
            # A store that cannot refuse keeps the last write.
            if self._locked_by() != mine:
                self._refuse()
            yield
        finally:
            # Another builder that removed and replaced it keeps it.
            with contextlib.suppress(FeedlineError):
                if self._locked_by() == mine:
                    self._there.remove(LOCK)

    def _locked_by(self) -> bytes:
        """Return the text of the lock; empty without a lock."""
        try:
            return self._there.read(LOCK)
        except FileNotFoundError:
            return b""

    def _refuse(self) -> NoReturn:
        lock = self._there.file_url(LOCK)
        owner = self._locked_by().decode("utf-8", "replace").partition("\n")[0]
        owner = owner or "it has just ended"
        command = f", for S3 with `aws s3 rm {lock}`" if lock.startswith("s3") else ""
        raise UsageError(
            f"another build is running in {self._url!r} ({owner})",
            hint="wait for it, or use another folder; if it was killed, remove the object "
            f"{lock}{command}, and build again",
        )

    def _fetch(self) -> None:
        """Create the mirror."""
        listed = self._there.files()
        small = [name for name in listed if _SMALL.fullmatch(name)]
        for name, file in listed.items():
            if _SHARD.fullmatch(name):
                path = self._place(name)
                path.touch()
                os.truncate(path, file.size)  # needs no disk space
        for name, data in zip(small, self._there.each(self._there.read, small), strict=True):
            self._place(name).write_bytes(data)
        self._published = {name: _state(path) for name, path in list_files(self.root)}

    def _place(self, name: str) -> Path:
        path = Path(self.root, name)
        path.parent.mkdir(exist_ok=True)
        return path

    def _leave(self) -> None:
        """Publish everything, and remove the shards of resolutions without a finished shard."""
        self.publish()
        names = self._there.files()
        sides = ((name, _SHARD.fullmatch(name)) for name in names)
        lost = [name for name, of in sides if of and not Path(self.root, of[1]).is_dir()]
        list(self._there.each(self._there.remove, lost))

    def _raise_renamed(self, error: BaseException) -> NoReturn:
        """Raise an error with the URL instead of the mirror in its message."""
        if isinstance(error, FeedlineError):
            error.args = (Exception.__str__(error).replace(self.root, self._url),)
            error.hint = error.hint.replace(self.root, self._url)
        raise error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):  # containers may have no user name
        return "someone"


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
