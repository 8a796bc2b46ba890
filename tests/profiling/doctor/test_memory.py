"""Memory, its limit, and /dev/shm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from feedline import DataLoader
from feedline.engine.start_pool import pool_bytes
from feedline.images.array import ImageArray
from feedline.profile.doctor.memory import (
    BATCH_ROWS,
    BATCH_SLOTS,
    IMAGE_PX,
    check_memory,
    check_shared_memory,
    slot_bytes,
)
from feedline.system import MemoryLimits

GIB = 1 << 30


def test_memory_without_limit_passes() -> None:
    check = check_memory(MemoryLimits(machine=64 * GIB, limit=None, available=60 * GIB), 8)
    assert check.status == "ok"
    assert check.details["cgroup_limit_bytes"] is None
    assert check.details["page_cache_may_hold_bytes"] == int(0.8 * 60 * GIB)


def test_cgroup_limit_is_reported() -> None:
    check = check_memory(MemoryLimits(machine=64 * GIB, limit=8 * GIB, available=7 * GIB), 8)
    assert check.status == "note"
    assert "limit of the cgroup 8.6 GB" in check.summary


def test_memory_check_fails_exactly_if_loader_would() -> None:
    needed = pool_bytes(8, BATCH_SLOTS * slot_bytes())
    for available, status in ((needed, "ok"), (needed - 1, "fail")):
        limits = MemoryLimits(machine=64 * GIB, limit=None, available=available)
        assert check_memory(limits, 8).status == status


def test_batch_memory_equals_allocation_of_loader() -> None:
    images = ImageArray(np.zeros((8, 4, 4, 3), np.uint8), np.zeros(8, np.int64))
    loader = DataLoader(images, batch_size=BATCH_ROWS, image_size=IMAGE_PX)
    try:
        iterator = iter(loader)
        assert f"{BATCH_SLOTS * slot_bytes() / 2**20:.0f} MiB" in loader.explain()
        del iterator
    finally:
        loader.close()


def test_shared_memory_of_machine_is_checked() -> None:
    check = check_shared_memory(1)
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no /dev/shm here")
    room = os.statvfs("/dev/shm")
    assert check.details["size_bytes"] == room.f_blocks * room.f_frsize
    assert check.details["feedline_needs_it"] is False


def test_more_workers_than_shared_memory_allows_is_a_warning() -> None:
    check = check_shared_memory(1_000_000)
    assert check.status == "warn"
    assert "--shm-size=" in check.fix
    assert "feedline's workers need none" in check.summary


def test_missing_shared_memory_is_a_warning(tmp_path: Path) -> None:
    check = check_shared_memory(1, tmp_path / "shm")
    assert (check.status, check.details["size_bytes"]) == ("warn", None)


SMALL = """
import sys
from feedline.profile.doctor.memory import check_shared_memory
check = check_shared_memory(2)
print(check.status, check.details["size_bytes"])
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no mounts of one's own here")
def test_shared_memory_of_64_mb_is_a_warning() -> None:
    mount = "mount -t tmpfs -o size=64m none /dev/shm && exec "
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount + f"{sys.executable} -c '{SMALL}'"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if done.returncode and not done.stdout:
        pytest.skip(f"no mounts of one's own here: {done.stderr.strip()}")
    assert done.stdout.split() == ["warn", str(64 << 20)]
