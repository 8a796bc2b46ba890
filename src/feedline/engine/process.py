"""Setup of a worker or fork server process.

Guarantees: it dies with its parent, ignores the terminal's Ctrl-C and other signals that the
trainer handles, such as a request for a checkpoint, and runs its libraries on one thread: the
workers are the parallelism.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection, Iterator
from multiprocessing import process as mp_process
from typing import Any

from feedline.private_names import find_private

WORKER_NAME = "feedline worker"
"""Process name of a worker, set before it imports the user's script."""

MISSING_MAIN_GUARD_STATUS = 78
"""Exit status of a worker whose import of the main script started a loader with workers."""

THREAD_SETTINGS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_DECODER_THREADS = {
    "PIL.AvifImagePlugin": ("DEFAULT_MAX_THREADS", 0),
    "pillow_heif.options": ("DECODE_THREADS", 4),
    "pillow_jxl.JpegXLImagePlugin": ("DECODE_THREADS", -1),
}
"""By module: the name of its number of threads, and the default."""
WORKER_ENVIRONMENT = {
    **dict.fromkeys(THREAD_SETTINGS, "1"),
    # By default glibc raises both to the largest block ever freed and never returns that memory:
    # with photographs a worker's memory doubled over 50 epochs. With fixed values it is constant.
    # Workers that make whole batches use other values: see `keep_freed_memory`.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2 << 20),
    "FEEDLINE_RUN": "",  # workers start without the hook of `feedline run`
}
"""Environment for a child: it must be set before the child starts."""


def _signals(*names: str) -> frozenset[int]:
    """Numbers of those signals that this platform has."""
    return frozenset(int(getattr(signal, name)) for name in names if hasattr(signal, name))


CRASH_SIGNALS = _signals("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
"""Signals of a process's own errors. Others come from outside."""

# Left alone in children: they must be able to end, to wait for their own children and to use
# timers, and an ignored crash would repeat without end.
_NOT_IGNORED = CRASH_SIGNALS | _signals("SIGTERM", "SIGCHLD", "SIGALRM", "SIGVTALRM", "SIGPROF")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_REUSE_BYTES = 256 << 20
_in_worker = False
_ignored: set[int] = set()


def in_worker() -> bool:
    """Return True if this process is a feedline worker."""
    return _in_worker


def importing_script() -> bool:
    """Return True while this child process imports its parent's script."""
    # During the import the script is not yet `__main__`; afterwards both are one module.
    script = sys.modules.get("__mp_main__")
    return script is not None and script is not sys.modules.get("__main__")


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies. Linux; elsewhere a no-op."""
    if sys.platform == "linux":
        # Without prctl, only the orphan check ends this process.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)


def become_worker() -> None:
    """Turn this process into a worker: it ignores Ctrl-C and can be terminated."""
    global _in_worker
    _in_worker = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def signals_to_ignore(*, is_new_program: bool) -> list[int]:
    """Signals with a Python handler in this process, which its children must ignore.

    A new program has no handlers, and would end. It also ignores SIGUSR1 and SIGUSR2, for which the
    trainer may set a handler later.
    """
    handled = {int(s) for s in signal.valid_signals() if callable(signal.getsignal(s))}
    if is_new_program:
        handled |= _signals("SIGUSR1", "SIGUSR2")
    return sorted(handled - _NOT_IGNORED)


def ignore_signals(numbers: Collection[int] = ()) -> None:
    """Ignore signals in this process; also those of earlier calls again."""
    _ignored.update(numbers)
    for number in _ignored:
        signal.signal(number, signal.SIG_IGN)


def reset_multiprocessing() -> None:
    """Initialise multiprocessing in an `os.fork` worker as in its own children.

    Otherwise queues, locks and manager connections used before the fork would not work: a queue
    would never send, and two workers would read each other's answers.
    """
    mp: Any = mp_process
    for name in ("_ParentProcess", "_children", "_current_process", "_parent_process"):
        find_private(f"multiprocessing.process.{name}")
    mp._parent_process = mp._ParentProcess(mp._current_process.name, os.getppid(), None)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # is_alive() and join() need it
            mp._parent_process._sentinel = os.pidfd_open(os.getppid())
    # Not a daemon, because daemons cannot start processes. Spawned workers have the name alone.
    mp._current_process = mp_process.BaseProcess(name=f"forked {WORKER_NAME}")
    mp._children = set()
    find_private("multiprocessing.util._finalizer_registry").clear()  # the parent's
    find_private("multiprocessing.util._run_after_forkers")()


@contextlib.contextmanager
def block_interrupt(more: Collection[int] = ()) -> Iterator[None]:
    """Context manager: block Ctrl-C and more signals, also in a child started within.

    No effect on platforms that cannot block signals.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *more})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def keep_freed_memory() -> None:
    """Make this process reuse the memory of large blocks that it frees.

    A whole batch needs several blocks of many MB: samples, batch, temporaries of a transform or
    `collate_fn`. By default the kernel provides and zeroes each again: with MixUp on batches of
    19 MB that was a third of a worker's time. At most the peak memory is reused, up to 256 MB.
    glibc only; elsewhere a no-op.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_M_TRIM_THRESHOLD, _REUSE_BYTES)
            # Older releases accept at most half of an arena.
            mallopt(_M_MMAP_THRESHOLD, _REUSE_BYTES) or mallopt(_M_MMAP_THRESHOLD, 32 << 20)


def limit_threads() -> None:
    """Limit the imported libraries to one thread."""
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    if torch is not None:
        torch.set_num_threads(1)
    if cv2 is not None:
        # 0 means no threads. With 1, OpenCV would end its threads, and wait forever for threads of
        # the process that this one was forked from.
        cv2.setNumThreads(0)
    limit_decoder_threads()


def limit_decoder_threads() -> None:
    """Limit the imported image decoders to one thread, unless the user has set their number.

    Pillow imports the decoder of AVIF with the first such file, so call this again after a task. By
    default most of them start a thread for each core, for each image.
    """
    for module, (name, default) in _DECODER_THREADS.items():
        decoder = sys.modules.get(module)
        if decoder is not None and getattr(decoder, name, None) == default:
            setattr(decoder, name, 1)
