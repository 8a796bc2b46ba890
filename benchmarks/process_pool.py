"""Processes that call functions all at once, independent of the loader's engine."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from feedline.engine.process import WORKER_ENVIRONMENT, become_worker, end_with_parent

__all__ = ["ProcessPool", "ProcessState"]

ProcessState = dict[str, Any]
"""Values that a process keeps between calls."""


class ProcessPool:
    """Spawned processes; a context manager.

    Args:
        processes: number of processes.
        as_workers: set them up like a loader's workers: one thread, malloc's thresholds.
            Otherwise like a training process, which may have children.
    """

    def __init__(self, processes: int, *, as_workers: bool = True) -> None:
        context = multiprocessing.get_context("spawn")
        environment = os.environ.copy()
        if as_workers:
            os.environ.update(WORKER_ENVIRONMENT)
        self._processes = []
        try:
            for _ in range(processes):
                pipe, child_end = context.Pipe()
                process = context.Process(
                    target=_serve, args=(child_end, os.getpid()), daemon=as_workers
                )
                process.start()
                child_end.close()  # so that the pipe ends with the process
                self._processes.append((pipe, process))
        finally:
            os.environ.clear()
            os.environ.update(environment)

    def each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `function(state, *arguments[k])` in process k, all at once; return the results."""
        for (pipe, _), given in zip(self._processes, arguments, strict=True):
            pipe.send((function, given))
        answers = [pipe.recv() for pipe, _ in self._processes]  # EOFError if a process died
        for _, error in answers:
            if error:
                raise RuntimeError(error)
        return [result for result, _ in answers]

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *exc: object) -> None:
        for pipe, process in self._processes:
            pipe.close()
            process.join(5)
            process.kill()


def _serve(pipe: Connection[Any, Any], parent: int) -> None:
    end_with_parent(parent)
    become_worker()
    state: ProcessState = {}
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((function(state, *arguments), ""))
        except Exception:
            pipe.send((None, traceback.format_exc()))
