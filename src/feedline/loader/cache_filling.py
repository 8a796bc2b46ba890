"""Filling of a cache while training: its contents, the filling process, and when copies are read.

Guarantees: the choice between originals and copies depends on the run's position and on whether the
cache was finished when the run began, never on how fast the cache is filled. If the cache is
finished, a run reads copies from the start. Otherwise it reads originals until it has delivered as
many batches as an epoch has. From the next iteration on it reads copies, and waits for the cache if
it is unfinished. An epoch continued from a state keeps its choice. Parts of one folder, e.g. from
`random_split`, fill one cache with the whole folder. On each machine one process fills a folder,
for all loaders; it runs until the cache is finished or the process that started it ends. Errors
that prevent filling are raised when the process starts, or later when a loader waits for the cache.

Relies on: the lock in the folder, which the kernel releases when its process ends;
`feedline.cache.fill`, the code of the process; `ranks`, by which ranks that share a loader's
samples agree whether the cache was finished when they began.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feedline import errors
from feedline.engine.process import WORKER_ENVIRONMENT
from feedline.errors import ResourceError, UsageError
from feedline.images.compile.datasets import (
    FolderSelection,
    class_names,
    file_store,
    folder_root,
    select_folders,
)
from feedline.loader.dataset_kind import find_feedline_source
from feedline.loader.options import Options
from feedline.loader.position import LoaderPosition
from feedline.loader.ranks import RankAgreement
from feedline.order.sample_order import Order
from feedline.sources.cache_folder import is_locked, remove_files
from feedline.sources.cache_formats import incomplete_files
from feedline.sources.folder import FileStore
from feedline.sources.manifest import AWAITED, FILLED_FORMAT, UNFINISHED, check_place, is_finished
from feedline.sources.remote_filesystem import is_url
from feedline.sources.remote_images import RemoteStore
from feedline.system import code_command, readable

_STEP = 64
"""Resolutions are multiples of this number of pixels: 128, 192 and 256 for rows of 112, 160 and
224. A crop of a slightly larger copy is closer to a crop of the original, and few resolutions are
needed for many image sizes."""
_BOOT = (
    # As for the fork server: nothing is imported before the working directory is off the path.
    "import sys; sys.path[:] = sys.argv[3:]; from feedline.cache.fill import main; "
    "main(sys.argv[1], sys.argv[2] == 'eager')"
)
_POLL_S = 0.1
_LOG_EVERY_S = 10.0
_MAX_DEATHS = 3
_END_WITHIN_S = 1.0
_log = logging.getLogger("feedline")


@dataclass(frozen=True, eq=False)
class CacheContents:
    """Contents of a cache."""

    root: str  # folder of the cache
    originals: str  # folder of the originals
    files: FileStore  # originals; its kind is "folder" or, for some of the files, "files"
    classes: list[str] | None  # class names by number; None if unknown
    sides: tuple[int, ...]  # shorter sides of the resolutions in pixels, smallest first
    exif: bool  # images are rotated by their Exif orientation
    mode: str  # Pillow's mode of the copies


def cache_contents(options: Options, source: Any) -> CacheContents:
    """Contents for the cache of a loader that reads originals with `source`."""
    assert options.cache is not None
    if source.layout.dtype != "uint8":
        raise UsageError(
            f"{options.cache!r} is not a cache, and one that is filled while training has JPEGs, "
            f"which cannot hold {source.layout}: build it first with raw=True and mode=...",
            argument="cache",
        )
    whole = find_feedline_source(options.dataset)
    files = (source if whole is None else whole).originals()  # all files, also of a Subset
    if isinstance(files, RemoteStore):
        raise UsageError(
            f"{options.cache!r} is not a cache, and a cache of images at URLs cannot be filled "
            "while training: build it first with feedline.build_cache(dataset, ...), or remove "
            "cache=, because fetched files are kept on this machine in any case"
        )
    if whole is not None:
        where, classes = whole.root, list(whole.classes) or None
        files = files.without_repeats()
    else:
        folders = select_folders(options.dataset).folders
        if len(folders) > 1 or folders[0] is not options.dataset:
            files = file_store(FolderSelection(folders, None))
        root = folder_root(folders)
        where = root or os.fsdecode(files.folder)
        classes = class_names(folders)
        files = copy.copy(files.without_repeats())
        files.kind = "files" if root is None else "folder"
    where = os.path.abspath(where)
    sizes = [phase.image_size or source.image_size for phase in options.effective_schedule.phases]
    sizes += [] if options.max_image_size is None else [options.max_image_size]
    needed = {source.wanted_side(size) for size in sizes}
    check_place(options.cache, where if files.kind == "folder" else None)
    return CacheContents(
        root=options.cache,
        originals=where,
        files=files,
        classes=classes,
        sides=tuple(sorted({-(-side // _STEP) * _STEP for side in needed})),
        exif=source.options.exif,
        mode=source.layout.mode,
    )


_fillers: dict[str, CacheFiller] = {}  # by folder, of this process


class CacheFiller:
    """Process that fills a cache, at full speed if `eager`, otherwise with idle CPU time."""

    def __init__(self, contents: CacheContents, *, eager: bool) -> None:
        self._owner, self._root, self._state = os.getpid(), contents.root, ""
        environment = {**os.environ, **WORKER_ENVIRONMENT}
        environment.pop("LOCAL_WORLD_SIZE", None)  # it is the only one, whatever the ranks
        arguments = [contents.root, "eager" if eager else "idle"]
        try:
            self._process = subprocess.Popen(
                code_command(_BOOT, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,  # so that `readable` sees every message
                env=environment,
                # The terminal's Ctrl-C is for this process.
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            raise ResourceError(
                f"cannot start the process that fills the cache {contents.root!r}: {error}"
            ) from error
        try:
            self._read_message()
        except BaseException:
            self.end()
            raise
        if not self.is_busy:
            assert self._process.stdin is not None
            with (
                contextlib.suppress(BrokenPipeError),  # its next message has the reason
                open(self._process.stdin.fileno(), "wb", closefd=False) as stream,
            ):
                pickle.dump(vars(contents), stream, protocol=5)

    @property
    def is_busy(self) -> bool:
        """True if another process fills the folder, so that this process has ended."""
        return self._state == "busy"

    def end(self, within_s: float | None = None) -> None:
        """End the process, if it was started by the current process, and wait until it has ended,
        at most `within_s` seconds. Finished copies stay.

        It is killed with its workers: at the lowest priority they may get no time for an orderly
        end. A stopped process writes no more, and holds the cache's lock until it is killed; so all
        incomplete files are its own.
        """
        if self._owner != os.getpid():
            return
        if self._process.poll() is None and sys.platform != "win32":
            with contextlib.suppress(OSError):  # it has just ended
                os.killpg(self._process.pid, signal.SIGSTOP)
                try:
                    files = incomplete_files(self._root, FILLED_FORMAT)
                finally:  # also after another Ctrl-C
                    os.killpg(self._process.pid, signal.SIGKILL)
                remove_files(files)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        if sys.platform == "win32":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_WITHIN_S)
            self._process.kill()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:  # killed, but without a core to end on
            self._process.returncode = 1

    def is_usable(self) -> bool:
        """Return True if the process runs and was started by the current process."""
        return not self.is_busy and self._owner == os.getpid() and self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until the process has checked that it can fill the cache; raises if it cannot."""
        while self._owner == os.getpid() and self._state == "started":
            self._read_message()

    def poll(self, within_s: float) -> None:
        """Wait up to `within_s` seconds for a message. Raises like `wait_until_ready`."""
        assert self._process.stdout is not None
        if readable(self._process.stdout, within_s):
            self._read_message()

    def _read_message(self) -> None:
        """Process the next message of the process."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line and self._state not in ("done", "released"):
            raise _FillerKilled(
                "the process that fills the cache ended unexpectedly with status "
                f"{self._process.wait()}: it was killed, possibly because memory ran out. Finished "
                "copies stay, and the next run continues with them"
            )
        message = json.loads(line or "{}")
        if "error" in message:
            raise getattr(errors, message["error"])(message["text"])
        self._state = message.get("state", self._state)


class _FillerKilled(ResourceError):
    """Error: the process that fills the cache was killed."""


def start_filler(contents: CacheContents, *, eager: bool = False) -> CacheFiller | None:
    """Return the filler of a cache, started if needed; None if another process fills the cache."""
    filler = _fillers.get(contents.root)
    if filler is not None:
        if filler.is_usable():
            return filler
        filler.end()
    if is_locked(contents.root):
        return None
    filler = _fillers[contents.root] = CacheFiller(contents, eager=eager)
    return None if filler.is_busy else filler


@atexit.register
def _end_all() -> None:
    for filler in _fillers.values():
        filler.end(_END_WITHIN_S)


def wait_until_filled(contents: CacheContents) -> None:
    """Wait until a cache is filled, from now on at full speed; raises if it cannot be filled."""
    deaths, logged_s = 0, 0.0
    folder = Path(contents.root, UNFINISHED)
    while not is_finished(contents.root):
        with contextlib.suppress(OSError):  # the folder does not exist yet, or no longer
            (folder / AWAITED).touch()
        try:
            filler = start_filler(contents, eager=True)
            if filler is None:
                time.sleep(_POLL_S)
            else:
                filler.poll(_POLL_S)
        except _FillerKilled:
            deaths += 1
            if deaths == _MAX_DEATHS:
                raise
        if time.monotonic() - logged_s > _LOG_EVERY_S:
            logged_s = time.monotonic()
            progress = ""
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                per_shard = json.loads((folder / "settings.json").read_bytes())["per_shard"]
                done = min(len(contents.files), per_shard * len(list(folder.glob("*.npz"))))
                progress = f": {done} of {len(contents.files)} images done"
            _log.warning("waiting for the cache %r to be filled%s", contents.root, progress)


class CacheFilling:
    """Choice of one loader between originals and copies.

    A cache in a folder is filled. With a URL or an ImageFolder of a cache, copies are always read.
    """

    def __init__(self, cache: Any) -> None:
        root = cache if isinstance(cache, str) and not is_url(cache) else None
        self._root = root
        self.num_delivered = 0  # number of delivered batches made of originals
        self.has_ended = False  # an iteration over originals has ended
        self._chosen = False  # True if an iteration has started, or a loaded state has the choice
        self._filler: CacheFiller | None = None  # filler that `check` waits for
        self._copies = root is None or is_finished(root)

    def agree(self, agreement: RankAgreement, order: Order) -> None:
        """Begin with copies only if the cache was finished on all ranks."""
        if self._root is not None and not self._chosen:
            self._copies = agreement.all_agree(self._copies, order)

    def begin(self, position: LoaderPosition) -> None:
        """Begin an iteration at the position of a loader."""
        self._chosen = True
        if self._copies or position.restored_step:  # the rest of an epoch keeps its choice
            return
        try:
            batches = position.steps(position.current.epoch)
        except TypeError:  # the sampler has no length
            batches = 0
        self._copies = self.has_ended or 0 < batches <= self.num_delivered

    def delivered_after_one_more(self) -> int:
        """Value of `num_delivered` after one more delivered batch."""
        return self.num_delivered + (not self._copies)

    def reads_copies(self, contents: Callable[[], CacheContents | None]) -> bool:
        """Return True if copies are read. Waits until they exist; raises if they cannot be made."""
        unfinished = self._root is not None and not is_finished(self._root)
        if self._copies and unfinished and (to_fill := contents()) is not None:
            wait_until_filled(to_fill)
        return self._copies

    def start(self, contents: CacheContents | None) -> None:
        """Start the process that fills the cache, unless it is running or the cache is finished."""
        if contents is not None and not is_finished(contents.root):
            self._filler = start_filler(contents)

    def check(self) -> None:
        """Raise an error if the process cannot fill the cache."""
        filler, self._filler = self._filler, None
        if filler is not None:
            filler.wait_until_ready()

    def state(self) -> dict[str, Any]:
        """Entry of a state, JSON-able."""
        if self._root is None:
            return {}
        return {"cache": {"copies": self._copies, "batches": self.num_delivered}}

    def restored_from(self, state: Mapping[str, Any]) -> CacheFilling:
        """Copy with the choice of a loaded state, if it has one."""
        other, saved = copy.copy(self), state.get("cache")
        if self._root is None or saved is None:
            return other
        other._copies, other.num_delivered = saved["copies"], saved["batches"]
        other.has_ended = False
        other._chosen = True
        return other
