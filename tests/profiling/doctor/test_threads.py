"""Threads that libraries start in addition to the workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from feedline.profile.doctor.cores import check_opencv, check_openmp
from feedline.system import CoreLimits

FOUR_OF_8 = CoreLimits(machine=8, affinity=8, quota=4.0, allotted=None, processes=1)
ALL_8 = CoreLimits(machine=8, affinity=8, quota=inf, allotted=None, processes=1)


@pytest.mark.parametrize(
    ("limits", "given", "status"),
    [
        (ALL_8, None, "ok"),
        (FOUR_OF_8, None, "warn"),  # libgomp knows of no quota
        (FOUR_OF_8, "4", "ok"),
        (FOUR_OF_8, "1", "note"),
        (FOUR_OF_8, "5", "warn"),
        (FOUR_OF_8, "4,2", "ok"),
        (FOUR_OF_8, "8,1", "warn"),
        (FOUR_OF_8, "many", "warn"),
        (FOUR_OF_8, "", "warn"),
        (FOUR_OF_8, "0", "warn"),
        (FOUR_OF_8, "-1", "warn"),
        (FOUR_OF_8, "9" * 5000, "warn"),
    ],
)
def test_more_threads_than_cores_are_a_warning(
    limits: CoreLimits, given: str | None, status: str
) -> None:
    check = check_openmp(limits, {} if given is None else {"OMP_NUM_THREADS": given})
    assert check.status == status
    assert (check.fix == "export OMP_NUM_THREADS=4") == (status == "warn")


THREADS = """
import torch
print(torch.get_num_threads())
"""


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it takes two cores")
def test_invalid_thread_count_is_ignored() -> None:
    environ = {name: text for name, text in os.environ.items() if not name.endswith("_THREADS")}
    environ["OMP_NUM_THREADS"] = "many"
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60, env=environ
    )
    # One for each core, or for each that is no second thread of another.
    assert 1 <= int(done.stdout) <= len(os.sched_getaffinity(0))


@pytest.fixture
def opencv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for OpenCV with the one function that is used."""
    (tmp_path / "cv2.py").write_text("def getNumThreads():\n    return 16\n")
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("cv2", None)


def test_without_opencv_no_threads_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    check = check_opencv(ALL_8, {}, measure=True)
    assert (check.status, check.details["threads"]) == ("ok", None)
    assert "not installed" in check.summary


@pytest.mark.usefixtures("opencv")
@pytest.mark.parametrize(
    ("given", "status", "threads"),
    [("", "note", None), ("0", "note", None), ("1", "ok", 1), ("4", "note", 4), ("5", "warn", 5)],
)
def test_opencv_is_checked_by_environment_without_import(
    given: str, status: str, threads: int | None
) -> None:
    check = check_opencv(FOUR_OF_8, {"OPENCV_FOR_THREADS_NUM": given}, measure=False)
    assert (check.status, check.details["threads"]) == (status, threads)
    assert "cv2" not in sys.modules


@pytest.mark.usefixtures("opencv")
@pytest.mark.parametrize("given", ["many", "-2"])
def test_invalid_opencv_setting_warns(given: str) -> None:
    check = check_opencv(FOUR_OF_8, {"OPENCV_FOR_THREADS_NUM": given}, measure=False)
    assert check.status == "warn"


@pytest.mark.usefixtures("opencv")
def test_measuring_queries_opencv() -> None:
    check = check_opencv(FOUR_OF_8, {}, measure=True)
    assert (check.status, check.details["threads"]) == ("warn", 16)


def test_opencv_that_cannot_be_imported_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "cv2", raising=False)
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    check = check_opencv(ALL_8, {}, measure=True)
    assert check.status == "warn"
    assert "libGL.so.1" in check.summary
