"""Checks of the data folder: contents, disk, read rate, and whether it fits into memory."""

import os

import psutil
import pytest

from feedline import build_cache
from feedline.errors import UsageError
from feedline.machine import FilePart, find_disk, stays_in_memory
from feedline.profile import doctor_data
from feedline.profile.doctor import examine
from feedline.profile.doctor_data import (
    DECODED_BYTES_PER_S,
    DataFolder,
    ReadRate,
    check_disk,
    check_page_cache,
    check_read_rate,
    inspect_data,
    is_cached,
    measure_read_rate,
    require_folder,
    sample_files,
    scan_folder,
)
from feedline.profile.doctor_machine import CheckResult
from feedline.sources.folder import IMAGE_EXTENSIONS
from feedline.system import MemoryLimits
from machine_files import write_files

GB = 10**9


@pytest.mark.parametrize("format", ["webdataset", "folder"])
def test_cache_is_distinguished_from_images(jpeg_folder, tmp_path, format):
    build_cache(jpeg_folder, tmp_path / "cache", sizes=[16, 32], format=format, workers=0)
    data = inspect_data(str(tmp_path / "cache"))
    assert (data.result.status, data.result.details["images"]) == ("ok", 12)
    assert [level["size_px"] for level in data.result.details["levels"]] == [16, 32]
    assert data.bytes == max(level["bytes"] for level in data.result.details["levels"])
    assert data.sample


def test_an_lmdb_without_the_package_that_reads_it_fails(jpeg_folder, tmp_path, monkeypatch):
    pytest.importorskip("lmdb")
    build_cache(jpeg_folder, tmp_path / "cache", sizes=[16], format="lmdb", workers=0)
    assert inspect_data(str(tmp_path / "cache")).result.status == "ok"
    monkeypatch.setattr(doctor_data.importlib.util, "find_spec", lambda name: None)
    check = inspect_data(str(tmp_path / "cache")).result
    assert (check.status, check.fix) == ("fail", "pip install lmdb")


def test_incomplete_cache_is_a_failure(jpeg_folder, tmp_path):
    root = tmp_path / "cache"
    build_cache(jpeg_folder, root, sizes=[16], workers=0)
    for path in (root / "16").iterdir():
        path.unlink()
    check = inspect_data(str(root)).result
    assert (check.status, "feedline cache repair" in check.fix) == ("fail", True)
    (root / "feedline-cache.json").write_text("{")
    assert inspect_data(str(root)).result.status == "warn"
    (root / "feedline-cache.json").unlink()
    (root / "unfinished").mkdir()
    check = inspect_data(str(root)).result
    assert check.status == "warn"
    assert "not finished" in check.summary


@pytest.mark.parametrize(
    ("files", "status", "words", "nbytes"),
    [
        ({}, "warn", "empty", None),
        ({"a/0.tar": "x", "a/1.tar": "x"}, "note", "no images; 2 files, 2 bytes (2 .tar)", 2),
        ({"LICENSE": "x", "a.py": "x", "b.py": "x"}, "warn", "2 .py, 1 without", 3),
        ({"a/one.jpg": "xx", "b.txt": "x"}, "ok", "1 image, 2 bytes, in 1 folder", 2),
    ],
)
def test_other_folders_are_described(files, status, words, nbytes, tmp_path):
    data = inspect_data(str(write_files(tmp_path, files)))
    assert (data.result.status, data.bytes, data.at_least) == (status, nbytes, False)
    assert words in data.result.summary
    assert sum(file.bytes for file in data.sample) == (nbytes or 0)


def test_invalid_folder_is_rejected(tmp_path):
    with pytest.raises(UsageError, match="feedline cache info"):
        require_folder("s3://bucket/train")
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("file", "gone", "\0", "loop"):
        with pytest.raises(UsageError, match="cannot be listed"):
            examine(str(tmp_path / name))
    require_folder(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_folder_that_may_not_be_listed_is_rejected(tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    try:
        with pytest.raises(UsageError, match="permissions"):
            require_folder(str(closed))
    finally:
        closed.chmod(0o700)


def rate_of(bytes_per_s, *, read_from="disk", count=GB):
    return ReadRate(
        bytes=count, files=10, seconds=count / bytes_per_s, readers=2, read_from=read_from,
    )  # fmt: skip


def looked(root, rate, *, data_bytes=100 * GB, cacheable=50 * GB, at_least=False):
    """The checks of a folder that is read at a rate, by two workers."""
    data = DataFolder(CheckResult("ok", ""), bytes=data_bytes, at_least=at_least)
    disk, memory = find_disk(root, root), None
    if cacheable is not None:
        memory = MemoryLimits(machine=GB, limit=None, available=-(-cacheable * 5 // 4))
    cached = is_cached(data, disk, memory)
    return (
        check_disk(disk),
        check_read_rate(disk, rate, 2, cached),
        check_page_cache(data, disk, cached, memory),
    )


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
def test_disk_is_slow_if_cores_wait_for_it(rate, data_bytes, status, tmp_path):
    disk, read, _ = looked(tmp_path, rate, data_bytes=data_bytes)
    assert (disk.status, read.status) == ("unknown", status)


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
    data_bytes, cacheable, at_least, status, tmp_path
):
    rate = rate_of(WANTED)
    *_, held = looked(tmp_path, rate, data_bytes=data_bytes, cacheable=cacheable, at_least=at_least)
    assert held.status == status


def test_data_in_memory_are_not_taken_for_a_disk(tmp_path):
    mounts = {"/proc/self/mountinfo": "22 1 0:20 / / rw - tmpfs tmpfs rw\n"}
    rate = rate_of(1e6, read_from="unknown")
    disk, read, held = looked(write_files(tmp_path, mounts), rate)
    assert disk.details["kind"] == "memory"
    assert (read.status, read.details["read_from"]) == ("note", "memory")
    assert (held.status, held.details["fits"]) == ("ok", True)


LONG_S = 60.0


def images_of(found):
    return found.named(IMAGE_EXTENSIONS)


def fill(root, layout, ending=".jpg", size=10):
    """Create folders with this many files each."""
    for name, count in layout.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / name / f"{number}{ending}").write_bytes(b"x" * size)


def test_a_small_folder_is_counted_to_the_end(tmp_path):
    fill(tmp_path, {"train/cat": 3, "train/dog": 5, "val/cat": 1, "val/dog": 0})
    (tmp_path / "train" / "notes.TXT").write_text("hello")
    (tmp_path / "loose.PNG").write_bytes(b"abcd")
    with pytest.raises(FileNotFoundError):
        scan_folder(str(tmp_path / "nowhere"), LONG_S)
    found = scan_folder(str(tmp_path), LONG_S)
    assert (len(images_of(found)), found.folders) == (10, 6)
    assert found.complete
    counts = {ending: len(paths) for ending, paths in found.files.items()}
    assert counts == {".jpg": 9, ".txt": 1, ".png": 1}
    assert sorted(file.bytes for file in sample_files(images_of(found), LONG_S)) == [4, *[10] * 9]


def test_large_folder_is_listed_in_part(tmp_path, monkeypatch):
    fill(tmp_path, {".": 2000})
    monkeypatch.setattr(doctor_data, "_MAX_ENTRIES", 500)
    found = scan_folder(str(tmp_path), LONG_S)
    assert not found.complete
    assert 500 <= len(images_of(found)) < 2000
    assert len(sample_files(images_of(found), LONG_S)) == 256


def test_symlink_loops_end(tmp_path):
    fill(tmp_path, {"a/b": 2})
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "b" / "here").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    elsewhere = tmp_path / "linked"
    elsewhere.symlink_to(tmp_path / "a")
    found = scan_folder(str(tmp_path), LONG_S)
    assert found.complete
    assert len(images_of(found)) == 4  # linked folders count, as they do for ImageFolder


def test_files_of_any_name_are_read_and_pipes_are_not(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    os.makedirs(os.fsencode(tmp_path) + b"/\xff\xfe")
    with open(os.fsencode(tmp_path) + b"/\xff\xfe/\x80.jpg", "wb") as file:
        file.write(b"x")
    found = scan_folder(str(tmp_path), LONG_S)
    assert [file.bytes for file in sample_files(images_of(found), LONG_S)] == [1]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_folders_that_cannot_be_listed_are_counted(tmp_path):
    fill(tmp_path, {"open": 2, "closed": 2})
    (tmp_path / "closed").chmod(0)
    try:
        found = scan_folder(str(tmp_path), LONG_S)
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert (len(images_of(found)), found.unreadable, found.complete) == (2, 1, False)


def written(folder, sizes):
    files = []
    for number, size in enumerate(sizes):
        path = folder / f"{number}.bin"
        with open(path, "wb") as file:
            file.write(os.urandom(size))
            file.flush()
            os.fsync(file.fileno())
        files.append(FilePart(str(path), 0, size))
    return files


@pytest.mark.parametrize(
    ("sizes", "declared", "readers", "files", "nbytes"),
    [
        ([5000] * 20, None, 3, 16, 16 * 5000),  # a few are only probed
        ([(16 << 20) + 5000] * 4, None, 1, None, 32 << 20),  # long files are read in part
        ([100] * 4, 10_000, 1, None, 200),  # shortened files end early
        ([100], None, 8, 1, 100),
    ],
)
def test_read_files_are_counted(sizes, declared, readers, files, nbytes, tmp_path):
    parts = [part._replace(bytes=declared or part.bytes) for part in written(tmp_path, sizes)]
    found = measure_read_rate(parts, readers=readers, seconds=LONG_S)
    assert found is not None
    assert (found.files, found.bytes) == (files, nbytes)
    assert found.readers == min(readers, len(sizes))
    assert found.seconds > 0
    assert len(sizes) > 1 or found.read_from == "unknown"


def test_time_limit_and_empty_files_have_no_read_rate(tmp_path):
    gone = [FilePart(str(tmp_path / "gone"), 0, 100)] * 3
    for files in ([], written(tmp_path, [0, 0]), gone):
        assert measure_read_rate(files, readers=2, seconds=LONG_S) is None
    assert measure_read_rate(written(tmp_path, [5000] * 8), readers=2, seconds=-1.0) is None


CAN_DROP = hasattr(os, "posix_fadvise") and hasattr(os, "RWF_NOWAIT")
needs_calls = pytest.mark.skipif(not CAN_DROP, reason="no such calls here")


@needs_calls
def test_files_of_a_disk_are_read_from_the_disk(tmp_path):
    other, *files = written(tmp_path, [100_000] * 13)
    if stays_in_memory(other) is not False:
        pytest.skip("temporary files lie in memory here")
    for _ in range(10):  # the kernel cannot drop pages that another core has just written or read
        before = psutil.Process().io_counters().read_bytes
        found = measure_read_rate(files, readers=2, seconds=LONG_S)
        if found is None or found.read_from == "disk":
            break
    assert found is not None
    assert found.read_from == "disk"
    assert psutil.Process().io_counters().read_bytes - before >= found.bytes


def test_page_cache_is_unknown_without_system_call(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    found = measure_read_rate(written(tmp_path, [5000] * 8), readers=2, seconds=LONG_S)
    assert found is not None
    assert found.read_from == "unknown"
