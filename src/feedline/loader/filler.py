"""Process that fills a cache, as the training process controls it.

Guarantees: on each machine one process fills a folder, whichever loader asks for it; it lives until
it is done or the process that started it ends, independent of loaders. Errors that prevent filling
are raised at its start, or later when a loader waits for it.

Relies on: the lock in the folder, which the kernel releases when its process ends;
`feedline.cache.fill`, which runs there.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

from feedline import errors
from feedline.engine.process import WORKER_ENVIRONMENT
from feedline.engine.shipment import search_path
from feedline.errors import ResourceError
from feedline.loader.to_fill import ToFill
from feedline.stores.cache_layout import AWAITED, UNFINISHED, is_finished
from feedline.stores.cache_lock import is_locked
from feedline.system import readable

__all__ = ["Filler", "filler_of", "wait_until_filled"]

_BOOT = (
    # As for the fork server: nothing is imported before the working directory is off the path.
    "import sys; sys.path[:] = sys.argv[4:]; from feedline.cache.fill import main; "
    "main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'eager')"
)
_LOOK_EVERY_S = 0.1
_SAY_EVERY_S = 10.0
_MOST_DEATHS = 3
_log = logging.getLogger("feedline")
_END_WITHIN_S = 5.0
_fillers: dict[str, Filler] = {}  # by folder, of this process


class Filler:
    """A process that fills a cache, started now, unless another one on this machine does.

    Args:
        wanted: contents of the cache.
        eager: a loader waits for it; otherwise it uses only idle time.

    Raises:
        ResourceError: it cannot be started.
    """

    def __init__(self, wanted: ToFill, *, eager: bool) -> None:
        how = "eager" if eager else "idle"
        self._owner, self._state = os.getpid(), ""
        environment = {**os.environ, **WORKER_ENVIRONMENT}
        environment.pop("LOCAL_WORLD_SIZE", None)  # it is the only one, whatever the ranks
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, wanted.root, str(os.getpid()), how, *search_path()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,  # so that `readable` tells of all that was said
                env=environment,
                # The terminal's Ctrl-C is for this process.
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            raise ResourceError(
                f"cannot start the process that fills the cache {wanted.root!r}: {error}"
            ) from error
        try:
            self._hear()
        except BaseException:
            self.end()
            raise
        if not self.busy:
            assert self._process.stdin is not None
            request = {
                "where": wanted.where,
                "kind": wanted.kind,
                "files": wanted.files,
                "classes": wanted.classes,
                "sides": list(wanted.sides),
                "exif": wanted.exif,
            }
            there = self._process.stdin.fileno()
            with (
                contextlib.suppress(BrokenPipeError),  # what it says next tells why
                open(there, "wb", closefd=False) as stream,
            ):
                pickle.dump(request, stream, protocol=5)

    @property
    def busy(self) -> bool:
        """True if another build works in the folder, so that this one has ended."""
        return self._state == "busy"

    def end(self) -> None:
        """End it, if this process has started it; finished copies stay."""
        if self._owner == os.getpid():
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            try:
                self._process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def usable(self) -> bool:
        """True if this process has started it and it is still running."""
        return not self.busy and self._owner == os.getpid() and self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until it has checked that the cache can be made.

        Raises:
            FeedlineError: it cannot be made; the message has the reason.
            ResourceError: the process ended before.
        """
        while self._owner == os.getpid() and self._state == "begun":
            self._hear()

    def look(self, within_s: float) -> None:
        """Wait briefly for its next message; raises like `wait_until_ready`."""
        assert self._process.stdout is not None
        if readable(self._process.stdout, within_s):
            self._hear()

    def _hear(self) -> None:
        """Process its next message."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line and self._state not in ("done", "released"):
            raise _Ended(
                "the process that fills the cache ended unexpectedly with status "
                f"{self._process.wait()}: it was killed, possibly because memory ran out. Finished "
                "copies stay, and the next run continues with them"
            )
        said = json.loads(line or "{}")
        if "error" in said:
            raise getattr(errors, said["error"])(said["text"])
        self._state = said.get("state", self._state)


class _Ended(ResourceError):
    """The filler was killed."""


def filler_of(wanted: ToFill, *, eager: bool = False) -> Filler | None:
    """Return the filler of a cache in this process, started if needed; None if another process
    fills it.

    Raises:
        FeedlineError: the cache cannot be filled, as far as known at once.
    """
    found = _fillers.get(wanted.root)
    if found is not None:
        if found.usable():
            return found
        found.end()
    if is_locked(wanted.root):
        return None
    made = _fillers[wanted.root] = Filler(wanted, eager=eager)
    return None if made.busy else made


@atexit.register
def _end_all() -> None:
    for filler in _fillers.values():
        filler.end()


def wait_until_filled(wanted: ToFill) -> None:
    """Wait until a cache is filled, by this process's filler or another's.

    From now on it is filled at full speed: a background filler yields to it. Its progress is logged
    from time to time, as a warning of the logger "feedline".

    Raises:
        FeedlineError: it cannot be filled; the message has the reason.
    """
    deaths, said_at = 0, 0.0
    folder = Path(wanted.root, UNFINISHED)
    while not is_finished(wanted.root):
        with contextlib.suppress(OSError):  # it is not there yet, or any more
            (folder / AWAITED).touch()
        try:
            filler = filler_of(wanted, eager=True)
            if filler is None:
                time.sleep(_LOOK_EVERY_S)
            else:
                filler.look(_LOOK_EVERY_S)
        except _Ended:
            deaths += 1
            if deaths == _MOST_DEATHS:
                raise
        if time.monotonic() - said_at > _SAY_EVERY_S:
            said_at = time.monotonic()
            _log.warning("waiting for the cache %r to be filled%s", wanted.root, _progress(wanted))


def _progress(wanted: ToFill) -> str:
    folder = Path(wanted.root, UNFINISHED)
    try:
        each = json.loads((folder / "settings.json").read_bytes())["per_shard"]
        done = min(len(wanted.files), each * sum(1 for _ in folder.glob("*.npz")))
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f": {done} of {len(wanted.files)} images done"
