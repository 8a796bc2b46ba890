"""Page cache: files on disk can be dropped, mapped files stay."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from feedline.machine import can_drop_pages, stays_in_memory

pytestmark = pytest.mark.skipif(not can_drop_pages(), reason="no such calls here")


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    with open(path, "wb") as file:
        file.write(os.urandom(100_000))
        file.flush()
        os.fsync(file.fileno())
    return path


def test_fast_disk_is_still_a_disk(on_disk: Path) -> None:
    if stays_in_memory(str(on_disk)) is not False:
        pytest.skip("temporary files lie in memory here")
    answers = [stays_in_memory(str(on_disk), 0, 100_000) for _ in range(2000)]
    assert set(answers) <= {False, True}
    assert sum(map(bool, answers)) < 100  # 12 next to busy loops on all cores


def test_what_is_mapped_stays(on_disk: Path) -> None:
    with (
        open(on_disk, "rb", buffering=0) as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert len(mapped[:]) == 100_000  # now its pages are in memory, and in use
        assert stays_in_memory(str(on_disk)) is not False
