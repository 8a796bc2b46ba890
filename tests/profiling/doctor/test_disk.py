"""Checks of the data folder: type, speed, and whether it fits into memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from machine_files import write_files

from feedline import build_cache
from feedline.errors import UsageError
from feedline.profile.doctor import data as data_file
from feedline.profile.doctor import disk as disk_file
from feedline.profile.doctor.check import CheckResult
from feedline.profile.doctor.data import DataFolder, inspect_data, require_folder
from feedline.profile.doctor.disk import DECODED_BYTES_PER_S, check_disk
from feedline.profile.doctor.folder import FoundFile
from feedline.profile.doctor.read_rate import ReadFrom, ReadRate

GB = 10**9

# What a folder holds


def test_a_folder_of_images_is_counted(jpeg_folder: Path) -> None:
    data = inspect_data(str(jpeg_folder))
    assert data.check.status == "ok"
    assert data.check.summary.startswith("12 images, ")
    assert data.check.summary.endswith(", in 2 folders")
    assert data.bytes == sum(path.stat().st_size for path in jpeg_folder.rglob("*.jpg"))


@pytest.mark.parametrize("format", ["webdataset", "folder"])
def test_cache_is_distinguished_from_images(jpeg_folder: Path, tmp_path: Path, format: str) -> None:
    build_cache(jpeg_folder, tmp_path / "cache", sizes=[16, 32], format=format, workers=0)
    data = inspect_data(str(tmp_path / "cache"))
    assert (data.check.status, data.check.details["images"]) == ("ok", 12)
    assert [level["size_px"] for level in data.check.details["levels"]] == [16, 32]
    assert data.bytes == max(level["bytes"] for level in data.check.details["levels"])
    assert data.sample
    assert data.things == ("images" if format == "folder" else "files")


def test_an_lmdb_without_the_package_that_reads_it_fails(
    jpeg_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lmdb")
    build_cache(jpeg_folder, tmp_path / "cache", sizes=[16], format="lmdb", workers=0)
    assert inspect_data(str(tmp_path / "cache")).check.status == "ok"
    monkeypatch.setattr(data_file.importlib.util, "find_spec", lambda name: None)
    check = inspect_data(str(tmp_path / "cache")).check
    assert (check.status, check.fix) == ("fail", "pip install lmdb")


def test_incomplete_cache_is_a_failure(jpeg_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    build_cache(jpeg_folder, root, sizes=[16], workers=0)
    for path in (root / "16").iterdir():
        path.unlink()
    check = inspect_data(str(root)).check
    assert (check.status, "feedline cache repair" in check.fix) == ("fail", True)
    (root / "feedline-cache.json").write_text("{")
    assert inspect_data(str(root)).check.status == "warn"
    (root / "feedline-cache.json").unlink()
    (root / "unfinished").mkdir()
    check = inspect_data(str(root)).check
    assert check.status == "warn"
    assert "not finished" in check.summary


@pytest.mark.parametrize(
    ("files", "status", "words"),
    [
        ({}, "warn", "empty"),
        ({"a/0.tar": "x", "a/1.tar": "x"}, "note", "no images; 2 files, 2 bytes (2 .tar)"),
        ({"part.parquet": "xxx"}, "note", "no images; 1 files"),
        ({"LICENSE": "x", "a.py": "x", "b.py": "x"}, "warn", "2 .py, 1 without"),
        ({"one.jpg": "x"}, "ok", "1 image, 1 byte"),
    ],
)
def test_other_folders_are_described(
    files: dict[str, str], status: str, words: str, tmp_path: Path
) -> None:
    check = inspect_data(str(write_files(tmp_path, files))).check
    assert check.status == status
    assert words in check.summary


@pytest.mark.parametrize("url", ["s3://bucket/train", "https://host/cache"])
def test_url_is_rejected(url: str) -> None:
    with pytest.raises(UsageError, match="feedline cache info"):
        require_folder(url)


def test_invalid_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, words in (("file", "is a file"), ("gone", "does not exist"), ("\0", "cannot be")):
        with pytest.raises(UsageError, match=words):
            require_folder(str(tmp_path / name))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="cannot be listed"):
        require_folder(str(tmp_path / "loop"))
    require_folder(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_folder_that_may_not_be_listed_is_rejected(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        with pytest.raises(UsageError, match="permissions"):
            require_folder(str(closed))
    finally:
        closed.chmod(0o700)


# How it is read, and whether memory holds it


def rate_of(bytes_per_s: float, *, read_from: ReadFrom = "disk", count: int = GB) -> ReadRate:
    return ReadRate(
        bytes=count, files=10, seconds=count / bytes_per_s, readers=2, whole_files=True,
        read_from=read_from,
    )  # fmt: skip


def looked(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    rate: ReadRate | None,
    *,
    data_bytes: int | None = 100 * GB,
    cacheable: int | None = 50 * GB,
    at_least: bool = False,
) -> Sequence[CheckResult]:
    """The checks of a folder that is read at a rate, by two workers."""
    monkeypatch.setattr(disk_file, "measure_read_rate", lambda *_, **__: rate)
    check = CheckResult(id="data-folder", status="ok", summary="")
    sample = (FoundFile(path="x", bytes=1),)
    data = DataFolder(
        check=check, sample=sample, bytes=data_bytes, at_least=at_least, things="images"
    )
    return list(check_disk(str(root), data, cacheable_bytes=cacheable, workers=2, root=root))


WANTED = 2 * DECODED_BYTES_PER_S


@pytest.mark.parametrize(
    ("rate", "data_bytes", "status"),
    [
        (rate_of(WANTED), 100 * GB, "ok"),
        (rate_of(WANTED - 1e6), 100 * GB, "note"),
        (rate_of(WANTED / 2 - 1e6), 100 * GB, "warn"),
        (rate_of(WANTED / 2 - 1e6), 10 * GB, "note"),  # memory holds it after an epoch
        (rate_of(WANTED / 2 - 1e6), None, "warn"),
        (rate_of(1e6, count=100_000), 100 * GB, "note"),  # too little
        (rate_of(1e6, count=1_000_000), 100 * GB, "warn"),  # little, as it took a second
        (rate_of(1e6, read_from="memory"), 100 * GB, "note"),
        (rate_of(1e6, read_from="unknown"), 100 * GB, "note"),
        (None, 100 * GB, "unknown"),
    ],
)
def test_disk_is_slow_if_cores_wait_for_it(
    rate: ReadRate | None,
    data_bytes: int | None,
    status: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, read, _ = looked(monkeypatch, tmp_path, rate, data_bytes=data_bytes)
    assert (disk.id, disk.status) == ("disk", "unknown")
    assert (read.id, read.status) == ("read-rate", status)


@pytest.mark.parametrize(
    ("data_bytes", "cacheable", "at_least", "status"),
    [
        (50 * GB, 50 * GB, False, "ok"),
        (50 * GB + 1, 50 * GB, False, "note"),
        (50 * GB + 1, 50 * GB, True, "note"),
        (GB, 50 * GB, True, "unknown"),
        (None, 50 * GB, False, "unknown"),
        (GB, None, False, "unknown"),
    ],
)
def test_folder_fits_memory_only_if_size_is_known(
    data_bytes: int | None,
    cacheable: int | None,
    at_least: bool,
    status: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rate = rate_of(WANTED)
    *_, held = looked(
        monkeypatch, tmp_path, rate, data_bytes=data_bytes, cacheable=cacheable, at_least=at_least
    )
    assert (held.id, held.status) == ("page-cache", status)


def test_data_in_memory_are_not_taken_for_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = {"/proc/self/mountinfo": "22 1 0:20 / / rw - tmpfs tmpfs rw\n"}
    rate = rate_of(1e6, read_from="unknown")
    disk, read, held = looked(monkeypatch, write_files(tmp_path, mounts), rate)
    assert disk.details["kind"] == "memory"
    assert (read.status, read.details["read_from"]) == ("note", "memory")
    assert (held.status, held.details["fits"]) == ("ok", True)


def test_folder_of_this_machine_is_examined_completely(jpeg_folder: Path) -> None:
    data = inspect_data(str(jpeg_folder))
    disk, read, held = check_disk(str(jpeg_folder), data, cacheable_bytes=GB, workers=2)
    assert disk.details["file_system"]
    assert read.details["bytes"] > 0
    assert held.status == "ok"
