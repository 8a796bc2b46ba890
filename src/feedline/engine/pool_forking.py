"""Worker pool of processes that the trainer forks itself, for one epoch. Linux.

A fork copies the page tables of the whole trainer, which takes 10 ms and more. So for workers that
end with their epoch, the copy for a fork server is saved.
Guarantees: those of `LinuxPool`. A worker that replaces a dead one, or is added, is forked from the
trainer as it is then.
Relies on: a start in the trainer's main thread, as the kernel kills a worker with the thread that
forked it; process descriptors (pidfd), which report deaths.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import time
import weakref
from functools import partial

from feedline.engine.fork_server import (
    become_forked_worker,
    handle_signals,
    leave_trainer,
    run_worker,
    worker_exit,
)
from feedline.engine.load_samples import AnySource
from feedline.engine.pool_linux import (
    END_DEADLINE_S,
    LinuxPool,
    advice_on_threads,
    fork_child,
    fork_error,
    is_main_thread,
)
from feedline.engine.process import block_interrupt, end_with_parent, signals_to_ignore


def can_fork_workers() -> bool:
    """Return True if workers can be forked by this process: see the module."""
    return is_main_thread() and signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN and _has_pidfds()


@functools.cache
def _has_pidfds() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return hasattr(signal, "pidfd_send_signal")


class _Child:
    """Child of this process. Its descriptor (`fd`) is closed with it.

    If it cannot be opened, e.g. with too many open files, the child is killed.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self.fd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._close = weakref.finalize(self, os.close, self.fd)
        self._close.atexit = False

    def kill(self) -> None:
        """Kill it, unless it was reaped."""
        with contextlib.suppress(ProcessLookupError):
            if self._close.alive:
                signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def has_ended(self, timeout_s: float) -> bool:
        """Wait for the end. Return False at the deadline."""
        if not self._close.alive:
            return True
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def reap(self) -> int:
        """Return the exit status of an ended child. May be called again after an interrupt."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # the program has waited for all of its children
            return -signal.SIGKILL
        finally:
            self._close()


class ForkingPool(LinuxPool):
    """Worker pool forked by this process."""

    def __init__(self, source: AnySource, slots_bytes: int) -> None:
        self._children: dict[int, _Child] = {}  # by worker id
        self._owner = os.getpid()
        super().__init__(source, slots_bytes, forked=True)
        self._finalizer = weakref.finalize(self, _end_children, self._children, self._owner)
        self._finalizer.atexit = False  # the kernel ends them with the trainer

    def _connect(self) -> None:
        self.advice = advice_on_threads()
        self._results_end = self._open_sockets()

    def _start_worker(self, worker_id: int) -> None:
        with block_interrupt(signals_to_ignore(is_new_program=False)):
            try:
                child = _Child(fork_child(partial(self._run_worker, worker_id, os.getpid())))
            except OSError as error:
                raise fork_error(error) from error
            self._children[worker_id] = child
            self._workers.add(worker_id)
            self._poll.register(child.fd, select.POLLIN)

    def _run_worker(self, worker_id: int, trainer: int, ignored_signals: list[int]) -> None:
        """Run a worker in a child forked from the trainer's main thread."""
        with worker_exit():
            leave_trainer()
            become_forked_worker()
            handle_signals(ignored_signals)
            end_with_parent(trainer)
            self._tasks.close()
            self._results.close()
            ends, block_fd = (self._tasks_end, self._results_end), self._memory.fd
            run_worker(*ends, block_fd, self._source, (), worker_id, self._target)

    def _read_messages(self) -> None:
        for worker_id, child in list(self._children.items()):
            if child.has_ended(0.0):
                self._poll.unregister(child.fd)
                status = child.reap()
                del self._children[worker_id]
                self._on_worker_exit(worker_id, child.pid, status)

    def kill(self, worker_id: int, reason: str) -> None:
        self._kill_reasons[worker_id] = reason
        if worker_id in self._children:
            self._children[worker_id].kill()

    def _end_workers(self, release_server: bool) -> bool:
        has_ended = _end_children(self._children, self._owner)
        self._results_end.close()
        return has_ended


def _end_children(children: dict[int, _Child], owner: int) -> bool:
    """Kill children of this process and wait for their ends. Return False at the deadline."""
    if os.getpid() != owner:  # a fork of their parent
        return True
    for child in children.values():
        child.kill()
    deadline = time.monotonic() + END_DEADLINE_S
    for worker_id, child in list(children.items()):
        if child.has_ended(max(0.0, deadline - time.monotonic())):
            child.reap()
            del children[worker_id]
    return not children
