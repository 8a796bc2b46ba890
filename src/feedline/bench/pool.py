"""Processes that call functions, outside the loader's engine.

Guarantees: `each` calls a function in every process at the same time. When it breaks off, and
after `close`, no process of the pool is left, nor any child of one. None outlives this process
(on Linux not even a kill -9 of it), and a Ctrl-C reaches this process alone.

Relies on: multiprocessing's spawn, so functions and arguments must pickle. A pool is used from
the main thread.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeAlias

import psutil

from feedline.engine.process import (
    WORKER_ENVIRONMENT,
    end_with_parent,
    interrupt_held,
    limit_threads,
    settle,
)
from feedline.errors import WorkerError

__all__ = ["Keep", "Pool", "Tell"]

Keep = dict[str, Any]
"""What a process keeps from one call to the next."""

Tell = Callable[[object], None]
"""Says something to the pool's process while a function runs."""

Pipe: TypeAlias = "Connection[Any, Any]"

_SILENCE_S = 120.0
_END_S = 5.0


class Pool:
    """So many processes, started at once.

    Args:
        processes: how many.
        as_workers: set up as a loader's workers are: one thread, malloc's thresholds. Else as a
            training process is, which may have children of its own.
        environment: variables to start them with, besides this process's own.
    """

    def __init__(
        self,
        processes: int,
        *,
        as_workers: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._processes: dict[Pipe, SpawnProcess] = {}
        self._as_workers = as_workers
        self._idle = True
        settings = {**(WORKER_ENVIRONMENT if as_workers else {}), **(environment or {})}
        context = multiprocessing.get_context("spawn")
        if sys.platform != "win32":  # which has none
            resource_tracker.ensure_running()  # starting it would let Ctrl-C through again
        try:
            with _environment(settings), interrupt_held():
                for _ in range(processes):
                    ours, theirs = context.Pipe()
                    process = context.Process(
                        target=_serve, args=(theirs, os.getpid(), as_workers), daemon=as_workers
                    )
                    process.start()
                    self._processes[ours] = process
                    theirs.close()  # so that the pipe ends with the process
        except BaseException:
            self._idle = False
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    def each(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        told: Callable[[Any], None] = lambda said: None,
    ) -> list[Any]:
        """Call `function(keep, tell, *arguments[k])` in process k, all at once, and wait.

        Args:
            function: importable; gets what the process keeps and a way to say something.
            arguments: one tuple for each process; where there are fewer, the others rest.
            told: called here with whatever a process says.

        Returns:
            What the calls returned, in the processes' order.

        Raises:
            WorkerError: a process died or was silent for two minutes; all of them are ended. Or
                they had ended before.
            Exception: what the first call to fail raised, once all have come to an end.
        """
        if len(arguments) > len(self):
            raise WorkerError(f"{function.__name__}: its processes have ended")
        pipes = list(self._processes)[: len(arguments)]
        waiting = set(pipes)
        answers: dict[Pipe, tuple[str, Any]] = {}
        self._idle = False
        try:
            for pipe, given in zip(pipes, arguments, strict=True):
                with self._naming_its_end(pipe):
                    pipe.send((function, given))
            while waiting:
                ready = wait(list(waiting), _SILENCE_S)
                if not ready:
                    raise WorkerError(
                        f"{function.__name__}: no word from {len(waiting)} processes for "
                        f"{_SILENCE_S:.0f} s; is the disk or network drive of the images stuck?"
                    )
                for pipe in waiting.intersection(ready):
                    with self._naming_its_end(pipe):
                        kind, value = pipe.recv()
                    if kind == "told":
                        told(value)
                    else:
                        answers[pipe] = kind, value
                        waiting.discard(pipe)
            self._idle = True
        finally:
            if not self._idle:
                self.close()
        for kind, value in answers.values():
            if kind == "failed":
                raise value
        return [answers[pipe][1] for pipe in pipes]

    @contextlib.contextmanager
    def _naming_its_end(self, pipe: Pipe) -> Iterator[None]:
        """Raise a WorkerError with the exit status where the process at a pipe's end has ended."""
        try:
            yield
        except (EOFError, OSError):
            process = self._processes[pipe]
            process.join(_END_S)
            raise WorkerError(
                f"a measuring process ended with status {process.exitcode}; -9 is a kill or "
                "the kernel short of memory (see dmesg): use fewer workers or a smaller batch size"
            ) from None

    def close(self) -> None:
        """End the processes and their children. May be called twice."""
        if self._idle and not self._as_workers:  # it may have something to put away
            for pipe in self._processes:
                with contextlib.suppress(OSError):  # it died meanwhile
                    pipe.send(None)
            for process in self._processes.values():
                process.join(_END_S)
        for pipe, process in self._processes.items():
            if process.is_alive():
                _kill_family(process.pid)
                process.join(_END_S)
            pipe.close()
        self._processes = {}

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._idle = False  # what broke off need not end in order
        self.close()


def _serve(pipe: Pipe, parent: int, as_workers: bool) -> None:
    """A process of a pool: obey (function, arguments) until None comes or the pipe ends."""
    end_with_parent(parent)
    settle()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    keep: Keep = {}

    def tell(said: object) -> None:
        pipe.send(("told", said))

    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone
        while (order := _next_order(pipe)) is not None:
            if as_workers:
                limit_threads()  # of whatever came with the order
            function, arguments = order
            try:
                answer: tuple[str, Any] = "done", function(keep, tell, *arguments)
            except Exception as error:
                answer = "failed", _portable(error)
            pipe.send(answer)


def _next_order(pipe: Pipe) -> Any:
    while True:
        try:
            return pipe.recv()
        except RuntimeError:
            # torch's handler of SIGCHLD says here that a worker died; the next batch says so too.
            continue


def _portable(error: Exception) -> Exception:
    """The error itself where it is one of the system's, which pickle; else its text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    # torch puts the traceback of its worker into the message, and what was wrong at the end.
    *_, said = str(error).splitlines() or [""]
    trace = "".join(traceback.format_exception(error, limit=-3)).rstrip()
    kind = f"{type(error).__name__}: "
    return WorkerError(f"{kind}{said.removeprefix(kind)}\n{trace}")


def _kill_family(pid: int | None) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        head = psutil.Process(pid)
        family = [head, *head.children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family[1:], _END_S)


@contextlib.contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Have children start with these environment variables."""
    before = os.environ.copy()
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update(before)
