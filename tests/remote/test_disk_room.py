"""Disk space of copies of remote files: bounded, and other files are untouched."""

import os
import shutil
import time

import pytest

from feedline.sources import local_copies
from feedline.sources.local_copies import DiskBudget, LocalCopies, default_limit

CACHE = "cache-0123456789abcdef.remote"
IMAGE = b"\1" * 8192


def put(path, blocks, idle_s=0.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\1" * 4096 * blocks)
    os.utime(path, times=(time.time() - idle_s,) * 2)
    return path


def used(folder):
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*.part"))


def test_least_recently_used_files_are_evicted_as_needed(tmp_path):
    oldest = put(tmp_path / CACHE / "48" / "000000.part", 50, idle_s=9000)
    older = put(tmp_path / CACHE / "24" / "000001.part", 50, idle_s=5000)
    young = put(tmp_path / CACHE / "24" / "000002.part", 50, idle_s=10)
    room = DiskBudget(str(tmp_path), 150 * 4096)
    assert room.reserve(4096)
    assert (oldest.exists(), older.exists(), young.exists()) == (False, True, True)
    assert not oldest.parent.exists()


def test_files_in_use_are_kept_and_nothing_more_is_reserved(tmp_path, monkeypatch):
    young = put(tmp_path / CACHE / "24" / "000002.part", 50, idle_s=10)
    room = DiskBudget(str(tmp_path), 50 * 4096)
    assert not room.reserve(1)
    assert young.exists()
    # Free space is not measured for every image,
    young.unlink()
    assert not room.reserve(1)
    # but again after a while.
    monkeypatch.setattr(room, "_full_until", 0.0)
    assert room.reserve(1)


def test_unrelated_files_are_never_removed(tmp_path):
    own = put(tmp_path / CACHE / "24" / "000000.part", 100, idle_s=9000)
    others = [
        put(tmp_path / name, 1, idle_s=9000)
        for name in (
            "train-cache/24/000000.tar",
            "train-cache/24/000000.part",
            "train-cache/index/labels.npy",
            f"{CACHE}/notes/000000.part",
            f"{CACHE}/24/000000.tar",
            f"{CACHE}/000000.part",
            "cache-0123.remote/24/000000.part",
        )
    ]
    assert DiskBudget(str(tmp_path), 100 * 4096).reserve(1)
    assert not own.exists()
    assert all(other.exists() for other in others)


def test_the_limit_holds_for_many_writers_together(tmp_path):
    limit = 400 * 4096
    writers = [
        LocalCopies(str(tmp_path / CACHE), DiskBudget(str(tmp_path), limit)) for _ in range(8)
    ]
    for turn in range(100):
        for number, writer in enumerate(writers):
            writer.write(f"24/{number:06}.tar", 8192 * turn, IMAGE)
    assert limit * 0.9 < used(tmp_path) <= limit + 8 * 8192


def test_disk_is_not_filled_completely(tmp_path, monkeypatch):
    disk = shutil.disk_usage(tmp_path)
    usage = disk._replace(total=10**9, free=10**9 // 20 + 4096)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    room = DiskBudget(str(tmp_path), 10**12)
    assert not room.reserve(4097)
    assert DiskBudget(str(tmp_path), 10**12).reserve(4096)
    assert default_limit(str(tmp_path / "not" / "there")) == 2048
    usage = usage._replace(total=10**13, free=10**13)
    assert default_limit(str(tmp_path)) == local_copies._DEFAULT_BYTES


def test_stored_data_is_read_and_missing_data_is_distinguished(tmp_path):
    copies = LocalCopies(str(tmp_path / CACHE), DiskBudget(str(tmp_path), 10**6))
    name, length = "24/000000.tar", len(IMAGE)
    assert copies.read(name, 100_000, length) is None
    copies.write(name, 100_000, IMAGE)
    assert copies.read(name, 100_000, length) == IMAGE
    assert copies.read(name, 0, length) == bytes(length)
    assert copies.read(name, 100_001, length) is None
    assert used(tmp_path) <= 2 * len(IMAGE) + 8192


def test_file_is_touched_on_use(tmp_path):
    path = put(tmp_path / CACHE / "24" / "000000.part", 50, idle_s=9000)
    copies = LocalCopies(str(tmp_path / CACHE), DiskBudget(str(tmp_path), 50 * 4096))
    assert copies.read("24/000000.tar", 0, 10) is not None
    assert time.time() - path.stat().st_mtime < 600


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="the system has no symbolic links")
def test_nothing_is_written_through_a_link(tmp_path, caplog):
    victim = put(tmp_path / "victim", 1)
    link = tmp_path / CACHE / "24" / "000000.part"
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    copies = LocalCopies(str(tmp_path / CACHE), DiskBudget(str(tmp_path), 10**6))
    copies.write("24/000000.tar", 0, b"else")
    assert victim.read_bytes() == b"\1" * 4096
    assert "cannot be stored" in caplog.text
