"""Process that builds a cache during a training; started by the loader's `filler`.

Guarantees: once all checks have passed it uses only idle time, and releases the cache if somebody
waits for it; an eager one runs at normal priority. It ends, with its workers, when its parent does;
finished shards stay and another process continues. Broken images are omitted and listed; they never
stop it.

Relies on: the kernel's idle scheduling class, which a thread can enter but not leave. Messages on
its standard output, one line of JSON each: {"state": "busy"} if another build works in the folder;
else "started", then, after its task has arrived on standard input, "ready", and finally "done", or
"released" if somebody waits; or {"error": KIND, "text": ...}.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import psutil

from feedline.errors import FeedlineError, UsageError
from feedline.sources.cache_folder import only_builder, remove_files
from feedline.sources.cache_formats import incomplete_files
from feedline.sources.manifest import AWAITED, FILLED_FORMAT, UNFINISHED, Level, is_finished
from feedline.system import readable
from feedline.text import shell_command

_LOOK_EVERY_S = 0.5


def main(root: str, eager: bool) -> None:
    """Fill a cache with the task from standard input; with `eager` somebody waits for it."""
    parent = os.getppid()  # possibly a launcher, such as python.exe in a venv of Windows
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent may end it before the task has arrived.
    with contextlib.suppress(BrokenPipeError, EOFError, pickle.UnpicklingError):
        try:
            with contextlib.ExitStack() as held:
                try:
                    token = held.enter_context(only_builder(root, patience_s=0))
                except UsageError:
                    return _send(state="busy")
                _send(state="started")
                contents = pickle.load(sys.stdin.buffer)  # does not load torch
                watch = (root, parent, eager)
                threading.Thread(target=_watch, args=watch, daemon=True).start()
                _fill(token, eager, **contents)
                _send(state="done")
        except FeedlineError as error:
            _send(error=type(error).__name__, text=str(error))
        except OSError as error:
            _send(error="ResourceError", text=f"cannot fill the cache {root!r}: {error}")


def _fill(token: str, eager: bool, **values: Any) -> None:
    """Build a cache with the values of a `CacheContents`."""
    # These load torch.
    from feedline.cache.build import build
    from feedline.cache.destination import open_destination
    from feedline.cache.job import BuildState, CacheJob, open_workers
    from feedline.cache.source import CacheSource
    from feedline.cache.spec import Spec
    from feedline.loader.cache_filling import CacheContents

    contents = CacheContents(**values)
    root = contents.root
    source = CacheSource(contents.files, contents.originals, contents.classes)
    destination = open_destination(root, token)
    if is_finished(root):  # meanwhile, by another process
        return
    levels, mode = _levels(root, contents.sides), contents.mode
    spec = Spec(root, FILLED_FORMAT, levels, contents.exif, skip_broken=True, mode=mode)
    ready = False

    def progress(state: BuildState) -> None:
        nonlocal ready
        if not ready:  # all checks have passed
            ready = True
            _send(state="ready")
            if not eager:
                _yield_to_others()

    with open_workers("auto", None) as pool, destination.lock():
        build(CacheJob(source, spec, pool, destination), progress)


def _levels(root: str, sides: Sequence[int]) -> tuple[Level, ...]:
    """Return the resolutions of an unfinished build, or those for `sides`."""
    from feedline.cache.level_encoder import DEFAULT_JPEG_QUALITY
    from feedline.cache.spec import existing_levels

    levels = tuple(Level(side=side, quality=DEFAULT_JPEG_QUALITY) for side in sides)
    unfinished = existing_levels(root)
    if not unfinished:
        return levels
    if unfinished[-1].side < sides[-1]:
        raise UsageError(
            f"the unfinished cache {root!r} has {', '.join(map(str, unfinished))}, but copies of "
            f"{sides[-1]} px are needed",
            hint="finish it with its `feedline cache build` and run `feedline cache add-size "
            f"{shell_command(root)} {sides[-1]}`, or use another folder",
        )
    return unfinished


def _yield_to_others() -> None:
    """Run this thread and future child processes only when the cores are idle."""
    with contextlib.suppress(OSError, psutil.Error):
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            psutil.Process().nice(getattr(psutil, "IDLE_PRIORITY_CLASS", 19))
    # A session is a scheduling group, and groups share the cores regardless of the classes of
    # their processes (man 7 sched, "The autogroup feature").
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write("19")
    with contextlib.suppress(Exception):  # not supported by every system
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def _watch(root: str, parent: int, eager: bool) -> None:
    """End this process when its parent ends, or when somebody waits for its slow work, at once: an
    orderly end takes too long when the cores are busy.

    The parent has ended if standard input is closed, or if it is no longer the parent: a child that
    was forked from it may hold the other end.
    """
    awaited = os.path.join(root, UNFINISHED, AWAITED)
    with contextlib.suppress(OSError):  # a waiting process repeats its request
        os.unlink(awaited)
    while os.getppid() == parent:
        if readable(sys.stdin.buffer, _LOOK_EVERY_S) and not os.read(sys.stdin.fileno(), 1):
            break
        if not eager and os.path.exists(awaited):
            _send(state="released")
            break
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    remove_files(incomplete_files(root, FILLED_FORMAT))
    os._exit(1)


def _send(**message: str) -> None:
    print(json.dumps(message), flush=True)
