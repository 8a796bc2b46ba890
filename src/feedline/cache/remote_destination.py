"""A cache that is built below a URL: in an object store, or wherever fsspec writes.

The builder works in a temporary folder, the *mirror*, that holds what the store holds: the small
files whole, and of each shard an empty file of its size. So a build finds there what it would find
in a folder of its own. What it changes there is brought to the store when it is published.

Guarantees: one builder at a time works there, where the store can refuse to write an object that is
there already; objects get their names when they are whole; the manifest is written after all else;
a build that was broken off can be gone on with from any machine; nothing is left of one that has
made nothing.

Relies on: `remote.folder` for the store; makers that upload the shards themselves (`ToStore`).
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

from feedline.cache.delivery import Delivery, Files, ToStore, files_in
from feedline.cache.source import Source
from feedline.cache.whole_file import write_whole
from feedline.errors import DatasetError, FeedlineError, UsageError
from feedline.remote.folder import RemoteFolder
from feedline.stores.cache_layout import LOCK, MANIFEST, UNFINISHED

__all__ = ["RemoteDestination"]

_SHARD = re.compile(r"(\d+)/\d{6}\.tar")
_SMALL = re.compile(
    rf"{re.escape(MANIFEST)}|index/[\w-]+\.npy|{UNFINISHED}(-\d+)?/(\d{{6}}\.npz|settings\.json)"
)


class RemoteDestination:
    """A folder below a URL.

    Args:
        url: of any protocol that fsspec writes to.
    """

    keeps = False

    def __init__(self, url: str) -> None:
        self.root = ""
        self._there = RemoteFolder(url)
        self.name = self._url = str(self._there)
        self._published: dict[str, tuple[int, int, int]] = {}

    def check_free(self, source: Source, format: str) -> None:
        """See whether a cache may be built here."""
        if format != "webdataset":
            raise UsageError(
                f"format {format} was asked for, and the cache {self._url!r} would lie in a store, "
                "which takes whole files: build it there with the format webdataset, or in a "
                "folder of this machine"
            )
        if f"{self._url}/".startswith(f"{source.where.rstrip('/')}/"):
            raise UsageError(
                f"the cache {self._url!r} would lie in its source {source.where!r} and become a "
                "part of it; name a folder elsewhere"
            )
        names = set(self._there.files()) - {LOCK}
        unfinished = {name for name in names if name.startswith(f"{UNFINISHED}/")}
        ours = MANIFEST in names or any(map(_SMALL.fullmatch, unfinished))
        if names and not ours:
            raise UsageError(
                f"{self._url!r} is not empty, it has {min(names)!r}, and it is no cache of "
                "feedline's; name a new folder, or empty this one"
            )

    def check_cache(self) -> None:
        """See whether a finished cache is here."""
        if not self._there.has(MANIFEST):
            raise DatasetError(f"{self._url!r} is no finished cache: it has no {MANIFEST}")

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Work in the mirror, where no other builder works in the store."""
        with (
            self._only_builder(),
            tempfile.TemporaryDirectory(prefix="feedline-") as self.root,
        ):
            self._fetch()
            try:
                yield
                self._leave()
            except BaseException as error:
                with contextlib.suppress(FeedlineError):  # the first error is the one to tell
                    self._leave()
                self._tell(error)

    def delivery(self, elsewhere: bool) -> Delivery:
        """Those who make units bring the shards to the store themselves."""
        return ToStore(self._there)

    def accept(self, files: Files) -> None:
        """Keep the record of a unit, which is in the store already."""
        for name, data in files:
            path = Path(self.root, name)
            write_whole(path, data)
            self._published[name] = _state(path)

    def publish(self) -> None:
        """Bring to the store what has changed in the mirror, the manifest last; then remove what
        is gone there.
        """
        there = {
            name: _state(path)
            for name, path in files_in(self.root)
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
        me = f"{_user()}@{socket.gethostname()}, process {os.getpid()}, since {since}"
        mine = f"{me}\n{secrets.token_hex(16)}\n".encode()
        try:
            with contextlib.suppress(FileExistsError):
                self._there.create(LOCK, mine)
            # A store that cannot refuse holds what was written last.
            if self._locked_by() != mine:
                self._refuse()
            yield
        finally:
            # Whoever has removed it, and begun to build, keeps it.
            with contextlib.suppress(FeedlineError):
                if self._locked_by() == mine:
                    self._there.remove(LOCK)

    def _locked_by(self) -> bytes:
        """What a builder has written into the lock; nothing where none works here."""
        try:
            return self._there.read(LOCK)
        except FileNotFoundError:
            return b""

    def _refuse(self) -> NoReturn:
        lock = self._there.file_url(LOCK)
        said = self._locked_by().decode("utf-8", "replace").partition("\n")[0]
        said = said or "it has just ended"
        hint = f", for S3 by `aws s3 rm {lock}`" if lock.startswith("s3") else ""
        raise UsageError(
            f"another build works in {self._url!r} ({said}): wait for it, or name another folder. "
            f"If that one was killed, remove the object {lock}{hint}, and build again"
        )

    def _fetch(self) -> None:
        """Make the mirror."""
        listed = self._there.files()
        small = [name for name in listed if _SMALL.fullmatch(name)]
        for name, file in listed.items():
            if _SHARD.fullmatch(name):
                path = self._place(name)
                path.touch()
                os.truncate(path, file.size)  # it takes no room on the disk
        for name, data in zip(small, self._there.each(self._there.read, small), strict=True):
            self._place(name).write_bytes(data)
        self._published = {name: _state(path) for name, path in files_in(self.root)}

    def _place(self, name: str) -> Path:
        path = Path(self.root, name)
        path.parent.mkdir(exist_ok=True)
        return path

    def _leave(self) -> None:
        """Publish all, and remove the shards of levels that came to nothing."""
        self.publish()
        names = self._there.files()
        sides = ((name, _SHARD.fullmatch(name)) for name in names)
        lost = [name for name, of in sides if of and not Path(self.root, of[1]).is_dir()]
        list(self._there.each(self._there.remove, lost))

    def _tell(self, error: BaseException) -> NoReturn:
        """Raise an error, in whose message the mirror is called by the URL."""
        if isinstance(error, FeedlineError):
            error.args = (str(error).replace(self.root, self._url),)
        raise error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):  # in a container it may have no name
        return "someone"


def _state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
