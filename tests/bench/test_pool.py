"""Processes that call functions, and how they end."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from tasks import (
    add,
    die,
    fail,
    interrupt_then,
    pid,
    sleep_with_a_child,
    threads,
    variable,
)

from feedline.bench.pool import ProcessPool
from feedline.errors import WorkerError


def gone(*pids: int) -> bool:
    _, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 10)
    return not alive


def test_every_process_keeps_state_and_results_are_in_order() -> None:
    said: list[int] = []
    with ProcessPool(2) as pool:
        assert pool.each(add, [(1,), (10,)], said.append) == [1, 10]
        assert pool.each(add, [(2,), (20,)]) == [3, 30]
        assert pool.each(add, [(4,)]) == [7], "the others rest"
        assert sorted(said) == [1, 10]
        assert pool.each(threads, [(), ()]) == ["1", "1"]
        # Ctrl-C is the pool's process's matter.
        assert pool.each(interrupt_then, [(1,), (2,)]) == [1, 2]
        pids = pool.each(pid, [(), ()])

        # What a function raises ends its call and not the process.
        with pytest.raises(OSError, match="No space left") as raised:
            pool.each(fail, [(True,), (True,)])
        assert raised.value.errno == 28
        with pytest.raises(WorkerError, match="KeyError: 'shelf'"):
            pool.each(fail, [(False,)])
        assert pool.each(pid, [(), ()]) == pids
    assert gone(*pids)
    pool.close()
    with pytest.raises(WorkerError, match="have ended"):
        pool.each(pid, [()])


def test_dead_process_ends_pool_with_exit_reason() -> None:
    with ProcessPool(2) as pool:
        pids = pool.each(pid, [(), ()])
        with pytest.raises(WorkerError, match="status -9"):
            pool.each(die, [()])
        assert gone(*pids)


def test_dead_process_is_detected_at_next_call() -> None:
    with ProcessPool(1) as pool:
        (dead,) = pool.each(pid, [()])
        psutil.Process(dead).kill()
        with pytest.raises(WorkerError, match="status -9"):
            pool.each(pid, [()])


def test_interruption_ends_processes_and_their_children() -> None:
    family: list[int] = []

    def meet(pids: tuple[int, int]) -> None:
        family.extend(pids)
        raise KeyboardInterrupt

    with ProcessPool(1, as_workers=False) as pool, pytest.raises(KeyboardInterrupt):
        pool.each(sleep_with_a_child, [(600.0,)], meet)
    assert len(family) == 2
    assert gone(*family)


def test_processes_start_with_given_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "here")
    with ProcessPool(1, as_workers=False, environment={"TMPDIR": str(tmp_path)}) as pool:
        assert pool.each(variable, [("TMPDIR",)]) == [str(tmp_path)]
        assert os.environ["TMPDIR"] == "here"
