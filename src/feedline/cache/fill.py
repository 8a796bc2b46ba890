"""The process that fills a cache while others train; the loader starts it, by `filler`.

Guarantees: once it has seen that the cache can be made, it takes only the time that no other
process wants, and lets go of the cache when somebody waits for it; an eager one takes what it gets.
It ends, with its workers, when the process that started it does; what it has made stays, and
another goes on with it. It never fails for a broken image, which it leaves out and lists.

Relies on: the kernel's idle scheduling class, which a thread may enter and not leave. What it says,
a line of JSON each: {"state": "busy"} where another build works in the folder; else "begun", then,
when it has what to make from its standard input, "ready", and in the end "done", or "released"
where somebody waits; or {"error": KIND, "text": ...}.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil

from feedline.errors import FeedlineError, UsageError
from feedline.stores.cache_layout import AWAITED, UNFINISHED, Level, is_finished
from feedline.stores.cache_lock import only_builder
from feedline.system import readable

__all__ = ["main"]

_LOOK_EVERY_S = 0.5
_TIDY_WITHIN_S = 10.0
_QUALITY = 95


def main(root: str, parent: int, eager: bool) -> None:
    """Fill the cache in a folder with what standard input says.

    Args:
        root: the folder.
        parent: the process that started this one.
        eager: somebody waits for the cache.
    """
    # It is not told of Ctrl-C by the terminal; one of its threads tells it that its time is over.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Ended by who started it, who may do so before all was said.
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, EOFError, pickle.UnpicklingError):
        try:
            with contextlib.ExitStack() as held:
                try:
                    token = held.enter_context(only_builder(root, patience_s=0))
                except UsageError:
                    return _say(state="busy")
                _say(state="begun")
                wanted = pickle.load(sys.stdin.buffer)
                threading.Thread(target=_watch, args=(root, parent, eager), daemon=True).start()
                _fill(root, token, eager, **wanted)
                _say(state="done")
        except FeedlineError as error:
            _say(error=type(error).__name__, text=str(error))
        except OSError as error:
            _say(error="ResourceError", text=f"the cache {root!r} cannot be filled: {error}")
        finally:  # what tells it that its time is over would be an error of the interpreter's end
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _fill(
    root: str,
    token: str,
    eager: bool,
    *,
    where: str,
    kind: str,
    files: Any,
    classes: Sequence[str] | None,
    sides: list[int],
    exif: bool,
) -> None:
    """Build a cache of files.

    Args:
        root: its folder.
        token: of the lock that this process holds.
        eager: somebody waits for it.
        where: the files' folder.
        kind: as of `FolderSource`.
        files: a `FileStore`.
        classes: their classes' names.
        sides: of the levels, in pixels.
        exif: turn images upright.
    """
    # These load torch.
    from feedline.cache.build import build
    from feedline.cache.destination import open_destination
    from feedline.cache.folder_source import FolderSource
    from feedline.cache.makers import open_makers
    from feedline.cache.settings import Spec
    from feedline.cache.unit_maker import Progress

    source = FolderSource(where, files, classes, kind)
    destination = open_destination(root, token)
    if is_finished(root):  # by another, in the meantime
        return
    spec = Spec(root, "webdataset", _levels(root, sides), exif, skip_broken=True)
    ready = False

    def progress(made: Progress) -> None:
        nonlocal ready
        if not ready:  # it has seen that settings, folder and disk will do
            ready = True
            _say(state="ready")
            if not eager:
                _yield_to_others()

    with open_makers("auto", None) as makers, destination.opened():
        build(source, spec, makers, destination, progress)


def _levels(root: str, sides: list[int]) -> tuple[Level, ...]:
    """The levels of the unfinished build that is there, or those that are wanted.

    Raises:
        UsageError: those that are there do not serve.
    """
    levels = tuple(Level(side=side, quality=_QUALITY) for side in sides)
    from feedline.cache.settings import unfinished_levels

    there = unfinished_levels(root)
    if not there:
        return levels
    if there[-1].side < sides[-1]:
        raise UsageError(
            f"the unfinished cache {root!r} is of {', '.join(map(str, there))}, and copies of "
            f"{sides[-1]} px are wanted of it; finish it by the `feedline cache build` that began "
            f"it and add a level, `feedline cache add-size {root} {sides[-1]}`, or name another "
            "folder"
        )
    return there


def _yield_to_others() -> None:
    """Work in this thread, and in processes to come, only when nobody else wants to."""
    with contextlib.suppress(OSError, psutil.Error):
        if hasattr(os, "SCHED_IDLE"):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        else:
            psutil.Process().nice(getattr(psutil, "IDLE_PRIORITY_CLASS", 19))
    # A session of its own is a group of its own, and groups share the cores whatever their
    # processes' classes are (man 7 sched, "The autogroup feature").
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write("19")
    with contextlib.suppress(Exception):  # not every system knows it
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def _watch(root: str, parent: int, eager: bool) -> None:
    """End this process when its parent has ended, or when somebody waits for what it makes slowly.

    The parent has ended when it has closed this process's standard input, or is the parent no more:
    a child that was forked from it holds the other end, too.
    """
    awaited = os.path.join(root, UNFINISHED, AWAITED)
    with contextlib.suppress(OSError):  # one who waits says so again
        os.unlink(awaited)
    while os.getppid() == parent:
        if readable(sys.stdin.buffer, _LOOK_EVERY_S) and not os.read(sys.stdin.fileno(), 1):
            break
        if not eager and os.path.exists(awaited):
            _say(state="released")
            _end_at_once()
    if sys.platform == "win32":  # there `os.kill` ends a process without a word
        signal.raise_signal(signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_TIDY_WITHIN_S)
    os._exit(1)  # the next one tidies up


def _end_at_once() -> None:
    """End this process and those it has started: others have no time for a better end."""
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()
    os._exit(1)


def _say(**what: str) -> None:
    print(json.dumps(what), flush=True)
