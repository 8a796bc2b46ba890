"""Processes that call functions, independent of the loader's engine.

Guarantees: `each` calls a function in every process at the same time. If it fails, and after
`close`, no process of the pool is left, nor any child of one. None outlives this process (on
Linux not even if it is killed with -9), and Ctrl-C reaches this process alone.

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
    become_worker,
    block_interrupt,
    end_with_parent,
    limit_threads,
)
from feedline.errors import WorkerError

__all__ = ["ProcessPool", "ProcessState", "Send"]

ProcessState = dict[str, Any]
"""Values that a process keeps between calls."""

Send = Callable[[object], None]
"""Sends an object to the pool's process while a function runs."""

Pipe: TypeAlias = "Connection[Any, Any]"

_SILENCE_S = 120.0
_END_S = 5.0


class ProcessPool:
    """Processes started at once, which call functions.

    Args:
        processes: number of processes.
        as_workers: set them up like a loader's workers: one thread, malloc's thresholds.
            Otherwise like a training process, which may have children.
        environment: additional environment variables.
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
        if sys.platform != "win32":  # Windows has no resource tracker
            resource_tracker.ensure_running()  # starting it would let Ctrl-C through again
        try:
            with _environment(settings), block_interrupt():
                for _ in range(processes):
                    parent_end, child_end = context.Pipe()
                    process = context.Process(
                        target=_serve, args=(child_end, os.getpid(), as_workers), daemon=as_workers
                    )
                    process.start()
                    self._processes[parent_end] = process
                    child_end.close()  # so that the pipe ends with the process
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
        on_message: Callable[[Any], None] = lambda message: None,
    ) -> list[Any]:
        """Call `function(state, send, *arguments[k])` in process k, all at once, and wait.

        Args:
            function: importable; gets the process's state and a function that sends messages.
            arguments: one tuple for each process; if there are fewer, the others stay idle.
            on_message: called here with each message.

        Returns:
            The results of the calls, in the processes' order.

        Raises:
            WorkerError: a process died or sent nothing for two minutes; all are ended. Or they
                had ended before.
            Exception: the exception of the first call to fail, after all calls have ended.
        """
        if len(arguments) > len(self):
            raise WorkerError(f"{function.__name__}: its processes have ended")
        pipes = list(self._processes)[: len(arguments)]
        waiting = set(pipes)
        answers: dict[Pipe, tuple[str, Any]] = {}
        self._idle = False
        try:
            for pipe, given in zip(pipes, arguments, strict=True):
                with self._report_exit(pipe):
                    pipe.send((function, given))
            while waiting:
                ready = wait(list(waiting), _SILENCE_S)
                if not ready:
                    raise WorkerError(
                        f"{function.__name__}: no answer from {len(waiting)} processes for "
                        f"{_SILENCE_S:.0f} s",
                        hint="check the disk or network drive of the images",
                    )
                for pipe in waiting.intersection(ready):
                    with self._report_exit(pipe):
                        kind, value = pipe.recv()
                    if kind == "message":
                        on_message(value)
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
    def _report_exit(self, pipe: Pipe) -> Iterator[None]:
        """Raise a WorkerError with the exit status if the process of a pipe has ended."""
        try:
            yield
        except (EOFError, OSError):
            process = self._processes[pipe]
            process.join(_END_S)
            raise WorkerError(
                f"a measuring process ended with status {process.exitcode} (-9: killed, maybe for "
                "lack of memory, see dmesg)",
                hint="use fewer workers or a smaller batch size",
            ) from None

    def close(self) -> None:
        """End the processes and their children. May be called twice."""
        if self._idle and not self._as_workers:  # it may have to clean up
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

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._idle = False  # a failed call need not end in order
        self.close()


def _serve(pipe: Pipe, parent: int, as_workers: bool) -> None:
    """Run a process of a pool: call (function, arguments) until None arrives or the pipe ends."""
    end_with_parent(parent)
    become_worker()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    state: ProcessState = {}

    def send(message: object) -> None:
        pipe.send(("message", message))

    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone
        while (request := _next_request(pipe)) is not None:
            if as_workers:
                limit_threads()  # of libraries imported by the request
            function, arguments = request
            try:
                answer: tuple[str, Any] = "done", function(state, send, *arguments)
            except Exception as error:
                answer = "failed", _portable(error)
            pipe.send(answer)


def _next_request(pipe: Pipe) -> Any:
    while True:
        try:
            return pipe.recv()
        except RuntimeError:
            # torch's SIGCHLD handler raises here if a worker died; the next batch reports it, too.
            continue


def _portable(error: Exception) -> Exception:
    """Return the error itself if it is an OSError, which pickles; otherwise its text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    # torch puts its worker's traceback into the message, and the error at the end.
    lines = [line for line in str(error).splitlines() if not line.startswith("hint: ")]
    last_line = lines[-1] if lines else ""
    trace = "".join(traceback.format_exception(error, limit=-3)).rstrip()
    kind = f"{type(error).__name__}: "
    return WorkerError(f"{kind}{last_line.removeprefix(kind)}\n{trace}")


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
    """Start children with these environment variables."""
    before = os.environ.copy()
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update(before)
