"""Run a copied suite with pytest in a process group of its own.

Guarantees: when the run ends, Ctrl-C included, no process of it remains. Each process carries the
path of the folder in its environment, by which orphans are found.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

__all__ = ["LoaderImportError", "Outcome", "Report", "about", "missing_packages", "run"]

_MARK = "CONFORMANCE_RUN"
_PATIENCE = 20.0  # seconds
_NEEDED = {
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "parameterized": "parameterized",
    "expecttest": "expecttest",
}
_ABOUT = """\
import json, platform, sys, torch, torchdata.stateful_dataloader as shim
class_ = shim.StatefulDataLoader.__mro__[1]
print(json.dumps({"class": f"{class_.__module__}.{class_.__qualname__}",
    "file": sys.modules[class_.__module__].__file__, "torch": torch.__version__,
    "python": platform.python_version(), "cuda": torch.cuda.is_available()}))
"""


class LoaderImportError(Exception):
    """The class under test cannot be imported."""


@dataclass
class Outcome:
    """Outcome of a test.

    Args:
        test: file::class::name.
        result: "passed", "failed", "skipped", or "no result" if its process died.
        message: short error, or reason for skipping.
        detail: traceback of a failure.
        seconds: duration, including setup and teardown.
    """

    test: str
    result: str = "no result"
    message: str = ""
    detail: str = ""
    seconds: float = 0.0
    finished: bool = field(default=False, repr=False)

    def add_report(self, line: dict) -> None:
        """Add the report of a phase of the test."""
        self.seconds = round(self.seconds + line["seconds"], 2)
        self.finished = self.finished or line["when"] == "teardown"
        if line["outcome"] == "failed":
            self.detail += line["detail"] + "\n"
        if self.result == "failed" or (line["when"] != "call" and line["outcome"] == "passed"):
            return
        if line["outcome"] == "failed" or self.result != "skipped":
            self.result, self.message = line["outcome"], line.get("message", "")


@dataclass
class Report:
    """Result of a run.

    Args:
        outcomes: one per test, in order of collection.
        status: pytest's exit status.
        log: pytest's output.
    """

    outcomes: list[Outcome]
    status: int
    log: str


def missing_packages() -> list[str]:
    """Packages that the suites need and that are not installed."""
    return [name for module, name in _NEEDED.items() if not importlib.util.find_spec(module)]


def _environment(folder: Path, loader: str) -> dict[str, str]:
    paths = [
        str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(":") if path
    ]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTORCH_TEST_WITH_SLOW": "1",  # test_proper_exit is marked slow
        "TMPDIR": str(folder / "tmp"),
        "CONFORMANCE_LOADER": loader,
        "CONFORMANCE_REPORTS": str(folder / "reports.jsonl"),
        _MARK: str(folder),
    }


def about(folder: Path, loader: str) -> dict[str, str]:
    """Facts about the class under test: its file, and the versions of torch and Python.

    Raises:
        LoaderImportError: the class cannot be imported.
    """
    environment = _environment(folder, loader)
    command = [sys.executable, "-c", _ABOUT]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise LoaderImportError(f"cannot import {loader}: {lines[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def run(
    folder: Path,
    loader: str,
    workers: int,
    keyword: str,
    limit: float,
    progress: Callable[[int, int, int], None],
) -> Report:
    """Run a copied suite.

    Args:
        folder: the copy.
        loader: the class under test, "module:Class".
        workers: processes of pytest-xdist; 0 for none.
        keyword: pytest's -k, or "".
        limit: time limit per test, in seconds.
        progress: called with the number of finished tests, of all tests, and of failed tests.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conformance_plugin"]
    command += ["-p", "no:cacheprovider", "--tb=short", "-c", "pytest.ini"]
    command += ["-n", str(workers), "--dist", "worksteal"] if workers else []
    command += ["-k", keyword] if keyword else []
    environment = {**_environment(folder, loader), "CONFORMANCE_TIMEOUT": str(limit)}
    with (folder / "pytest.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    outcomes: dict[str, Outcome] = {}
    try:
        for line in _lines(folder / "reports.jsonl", process):
            for test in line.get("collected", ()):
                outcomes.setdefault(test, Outcome(test))
            if "test" in line:
                outcomes.setdefault(line["test"], Outcome(line["test"])).add_report(line)
            done = [outcome for outcome in outcomes.values() if outcome.finished]
            progress(len(done), len(outcomes), sum(o.result == "failed" for o in done))
    finally:
        _end(process, folder)
    log_text = (folder / "pytest.log").read_text(errors="replace")
    return Report(list(outcomes.values()), process.returncode, log_text)


def _lines(path: Path, process: subprocess.Popen) -> Iterator[dict]:
    path.touch()
    with path.open() as file:
        rest = ""
        while True:
            ended = process.poll() is not None
            *whole, rest = (rest + file.read()).split("\n")
            yield from map(json.loads, whole)
            if ended:
                return
            time.sleep(0.2)


def _end(process: subprocess.Popen, folder: Path) -> None:
    """Kill remaining processes, multiprocessing's trackers last: they remove shared resources."""
    start = time.monotonic()
    while (left := _marked(folder)) and (past := time.monotonic() - start) < _PATIENCE:
        others = [one for one in left if not _is_tracker(one)]
        for one in others or (left if past > _PATIENCE / 2 else ()):
            with contextlib.suppress(psutil.Error):
                one.kill()
        time.sleep(0.05)
    process.kill()
    process.wait()


def _is_tracker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("resource_tracker" in word for word in process.cmdline())
    return False


def _marked(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == str(folder):
                found.append(process)
    return found
