"""pytest plugin: a time limit for each test, and a JSON line for each outcome.

Also used by the patched test_proper_exit, to find processes that a case has left behind.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

__all__ = ["left_behind", "new_case"]

_CASE = "CONFORMANCE_CASE"
_LONG = "test_proper_exit"
_LONG_FACTOR = 6  # it starts about forty processes, one after another
_DETAIL = 12000


def new_case(name: str) -> None:
    """Mark every process started from now on as part of this case."""
    os.environ[_CASE] = f"{os.getpid()}/{time.monotonic_ns()}/{name}"


def left_behind(patience: float) -> list[str]:
    """Descriptions of the case's processes that are still alive after `patience` seconds.

    Children of this process do not count: the case itself, and multiprocessing's tracker.
    """
    end = time.monotonic() + patience
    while (processes := _of_case()) and time.monotonic() < end:
        time.sleep(0.2)
    return processes


def _of_case() -> list[str]:
    processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_CASE) != os.environ[_CASE]:
                continue
            if process.pid != os.getpid() and process.ppid() != os.getpid():
                processes.append(f"{process.pid}: {' '.join(process.cmdline())}")
        except psutil.Error:  # gone, a zombie, or another user's
            continue
    return processes


def _write(line: dict[str, Any]) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["CONFORMANCE_REPORTS"], "a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limit each test's time, and run the longest first."""
    limit = float(os.environ["CONFORMANCE_TIMEOUT"])
    for item in items:
        long = item.name == _LONG
        item.add_marker(pytest.mark.timeout(limit * _LONG_FACTOR if long else limit))
    items.sort(key=lambda item: item.name != _LONG)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Report the collected tests."""
    if session.items:
        _write({"collected": [item.nodeid for item in session.items]})


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: Sequence[str]) -> None:
    """Report the collected tests, under pytest-xdist."""
    _write({"collected": list(ids)})


def pytest_runtest_logreport(report: Any) -> None:
    """Report a phase of a test: its setup, call, subtest or teardown."""
    subtest = getattr(report, "context", None) is not None
    line = {"test": report.nodeid, "when": report.when, "outcome": report.outcome}
    line["seconds"] = 0 if subtest else round(report.duration, 2)
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        line["message"] = str(crash.message if crash else report.longrepr)[:_DETAIL]
        line["detail"] = report.longreprtext[-_DETAIL:]
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        line["message"] = str(reason).removeprefix("Skipped: ")
        if subtest:
            line["outcome"] = "passed"
    _write(line)
