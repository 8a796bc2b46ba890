"""Measuring the read rate: files read, their source, and the time limit."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feedline.machine import can_drop_pages, stays_in_memory
from feedline.profile.doctor import read_rate
from feedline.profile.doctor.folder import FoundFile
from feedline.profile.doctor.read_rate import measure_read_rate

LONG_S = 60.0


def written(folder: Path, sizes: list[int]) -> list[FoundFile]:
    """Write files of these sizes to disk."""
    files = []
    for number, size in enumerate(sizes):
        path = folder / f"{number}.bin"
        with open(path, "wb") as file:
            file.write(os.urandom(size))
            file.flush()
            os.fsync(file.fileno())
        files.append(FoundFile(path=str(path), bytes=size))
    return files


def test_probed_files_are_read_once(tmp_path: Path) -> None:
    files = written(tmp_path, [5000] * 20)
    found = measure_read_rate(files, readers=3, seconds=LONG_S)
    assert found is not None
    assert (found.files, found.bytes, found.readers) == (16, 16 * 5000, 3)
    assert found.bytes_per_s == found.bytes / found.seconds
    assert found.files_per_s == found.files / found.seconds


def test_long_files_are_read_in_part(tmp_path: Path) -> None:
    found = measure_read_rate(written(tmp_path, [(16 << 20) + 5000] * 4), readers=1, seconds=LONG_S)
    assert found is not None
    assert (found.files, found.bytes, found.files_per_s) == (2, 32 << 20, None)


def test_time_limit_ends_reading(tmp_path: Path) -> None:
    assert measure_read_rate(written(tmp_path, [5000] * 8), readers=2, seconds=-1.0) is None


def test_empty_input_has_no_read_rate(tmp_path: Path) -> None:
    assert measure_read_rate([], readers=2, seconds=LONG_S) is None
    assert measure_read_rate(written(tmp_path, [0, 0]), readers=2, seconds=LONG_S) is None
    gone = [FoundFile(path=str(tmp_path / "gone"), bytes=100)] * 3
    assert measure_read_rate(gone, readers=2, seconds=LONG_S) is None


def test_single_file_has_unknown_source(tmp_path: Path) -> None:
    found = measure_read_rate(written(tmp_path, [100]), readers=8, seconds=LONG_S)
    assert found is not None
    assert (found.files, found.readers, found.read_from) == (1, 1, "unknown")


def test_shortened_files_end_early(tmp_path: Path) -> None:
    files = written(tmp_path, [100] * 4)
    lying = [FoundFile(path=file.path, bytes=10_000) for file in files]
    found = measure_read_rate(lying, readers=1, seconds=LONG_S)
    assert found is not None
    assert (found.bytes, found.files, found.files_per_s) == (200, 0, None)


needs_calls = pytest.mark.skipif(not can_drop_pages(), reason="no such calls here")


@needs_calls
def test_files_of_a_disk_are_read_from_the_disk(tmp_path: Path) -> None:
    other, *files = written(tmp_path, [100_000] * 13)
    if stays_in_memory(other.path) is not False:
        pytest.skip("temporary files lie in memory here")
    for _ in range(10):  # the kernel cannot drop pages that another core has just written or read
        before = psutil.Process().io_counters().read_bytes
        found = measure_read_rate(files, readers=2, seconds=LONG_S)
        if found is None or found.read_from == "disk":
            break
    assert found is not None
    assert found.read_from == "disk"
    assert psutil.Process().io_counters().read_bytes - before >= found.bytes


@pytest.fixture
def in_memory() -> Iterator[Path]:
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no files in memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@needs_calls
def test_files_in_memory_are_not_taken_for_a_disk(in_memory: Path) -> None:
    found = measure_read_rate(written(in_memory, [100_000] * 12), readers=2, seconds=LONG_S)
    assert found is not None
    assert found.read_from in ("memory", "unknown")  # as the kernel says of a tmpfs


def test_page_cache_is_unknown_without_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_rate, "can_drop_pages", lambda: False)
    found = measure_read_rate(written(tmp_path, [5000] * 8), readers=2, seconds=LONG_S)
    assert found is not None
    assert found.read_from == "unknown"


def test_read_files_stay_unchanged(tmp_path: Path) -> None:
    files = written(tmp_path, [5000] * 8)
    before = [(os.stat(file.path).st_mtime_ns, Path(file.path).read_bytes()) for file in files]
    measure_read_rate(files, readers=2, seconds=LONG_S)
    after = [(os.stat(file.path).st_mtime_ns, Path(file.path).read_bytes()) for file in files]
    assert before == after
