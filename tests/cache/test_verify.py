"""Verifying caches reports all damage, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
from pathlib import Path

import numpy as np
import pytest

from caches import FORMATS, find, flip, made, photos
from feedline.cache.damage import Verification, verify
from feedline.errors import DatasetError
from feedline.sources.archives import TarMember, tar_members
from feedline.sources.cache_format_base import LevelReader
from feedline.sources.manifest import MANIFEST
from feedline.sources.remote_cache import open_cache


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in each format: 12 images at 16 and 24 px."""
    root = tmp_path_factory.mktemp("whole")
    source = photos(root / "photos")
    for form in FORMATS:
        made(source, root / form, form)
    return root


@pytest.fixture
def copied(whole: Path, tmp_path: Path):
    """A copy of a cache, to damage it."""

    def copy(form: str) -> Path:
        return shutil.copytree(whole / form, tmp_path / form)

    return copy


def image(root: Path, sample: int, side: int) -> bytes:
    store = open_cache(root)
    data = store.read(sample, side)
    store.close()
    assert isinstance(data, bytes)
    return data


def members(shard: Path) -> list[TarMember]:
    with shard.open("rb") as file:
        return list(tar_members(file, shard.stat().st_size, str(shard), lambda name: True))


def header_of(shard: Path, name: str) -> tarfile.TarInfo:
    with tarfile.open(shard) as tar:
        return tar.getmember(name)


def told(found: Verification) -> list[tuple[int, int, str]]:
    return [(each.level, each.sample, each.name) for each in found.damaged]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("decode", [False, True])
def test_intact_cache_passes(whole: Path, form: str, decode: bool) -> None:
    seen: list[tuple[int, int]] = []
    found = verify(whole / form, decode=decode, workers=2, progress=lambda *at: seen.append(at))
    assert found.is_sound
    assert found == Verification(24, (), (), ())
    assert seen[0] == (0, 24)
    assert seen[-1] == (24, 24)


@pytest.mark.parametrize("form", FORMATS)
def test_flipped_bit_of_an_image_is_the_only_finding(copied, form: str) -> None:
    root = copied(form)
    data = image(root, 7, 24)
    file = {
        "webdataset": root / "24" / "000000.tar",
        "lmdb": root / "24" / "data.mdb",
        "folder": root / "24" / "dogs" / "000000007-1.jpg",
    }[form]
    flip(file, find(file, data) + len(data) // 2)
    found = verify(root, workers=1)
    assert not found.is_sound
    assert told(found) == [(24, 7, "dogs/1.jpg")]
    assert found.damaged[0].file == str(file)
    assert "checksum differs" in found.damaged[0].why
    assert (found.images, found.files, found.index) == (24, (), ())


def test_truncated_shard_is_reported_with_its_images(copied) -> None:
    root = copied("webdataset")
    shard = root / "16" / "000000.tar"
    size = shard.stat().st_size
    os.truncate(shard, size // 2)
    found = verify(root, workers=1)
    (problem,) = found.files
    assert (problem.file, problem.images) == (str(shard), 12)
    assert str(size) in problem.why
    assert str(size // 2) in problem.why
    assert [(level, sample) for level, sample, _ in told(found)] == [(16, n) for n in range(12)]


@pytest.mark.parametrize("ending", ["jpg", "cls", "json"])
@pytest.mark.parametrize(("sample", "name"), [(0, "cats/0.jpg"), (7, "dogs/1.jpg")])
@pytest.mark.parametrize("at", [8, 130, 150, 257])  # name, length, checksum, magic
def test_damaged_tar_header_is_the_only_finding(
    copied, ending: str, sample: int, name: str, at: int
) -> None:
    root = copied("webdataset")
    shard = root / "24" / "000000.tar"
    flip(shard, header_of(shard, f"{sample:09d}.{ending}").offset + at)
    with pytest.raises(DatasetError):
        members(shard)
    found = verify(root, workers=1)
    assert told(found) == [(24, sample, name)]
    assert found.damaged[0].file == str(shard)
    assert "header" in found.damaged[0].why
    assert (found.images, found.files, found.index) == (24, (), ())


def test_a_header_of_another_file_is_found(copied) -> None:
    root = copied("webdataset")
    shard = root / "16" / "000000.tar"
    data = bytearray(shard.read_bytes())
    to, other = (header_of(shard, f"{sample:09d}.jpg").offset for sample in (3, 5))
    data[to : to + 512] = data[other : other + 512]
    shard.write_bytes(data)
    assert told(verify(root, workers=1)) == [(16, 3, "cats/3.jpg")]


def test_a_damaged_end_of_a_tar_file_is_found(copied) -> None:
    root = copied("webdataset")
    shard = root / "16" / "000000.tar"
    flip(shard, shard.stat().st_size - 700)
    assert told(verify(root, workers=1)) == [(16, 11, "dogs/5.jpg")]


@pytest.mark.parametrize("content", [b"", b"no database", None])
def test_truncated_replaced_or_empty_database_is_reported(copied, content) -> None:
    root = copied("lmdb")
    data = root / "16" / "data.mdb"
    if content is None:
        os.truncate(data, data.stat().st_size // 2)
    else:
        data.write_bytes(content)
    found = verify(root, workers=1)
    assert [(level, sample) for level, sample, _ in told(found)] == [(16, n) for n in range(12)]
    assert all(str(root / "16") in each.why for each in found.damaged)


@pytest.mark.parametrize(
    ("form", "gone", "files", "damaged"),
    [
        ("webdataset", "16/000000.tar", 1, 12),
        ("lmdb", "24/data.mdb", 1, 12),
        ("folder", "24/cats/000000002-2.jpg", 0, 1),
    ],
)
def test_missing_file_is_reported(copied, form, gone, files, damaged) -> None:
    root = copied(form)
    (root / gone).unlink()
    found = verify(root, workers=1)
    assert len(found.files) == files
    assert all(each.file == str(root / gone) for each in found.files)
    assert len(found.damaged) == damaged
    assert {each.file for each in found.damaged} == {str(root / gone)}


@pytest.mark.parametrize("name", ["labels", "keys", "names", "stamps", "level-24"])
def test_missing_or_foreign_index_is_reported(copied, name: str) -> None:
    root = copied("webdataset")
    column = root / "index" / f"{name}.npy"
    whole = np.load(column)
    np.save(column, whole[::-1])
    found = verify(root, workers=1)
    assert found.index == (f"{column}: damaged, its digest differs",)
    assert {each.level for each in found.damaged} == {
        "labels": {16, 24},  # and with another label an image's checksum is another
        "keys": {16, 24},
        "level-24": {24},
    }.get(name, set())

    column.unlink()
    found = verify(root, workers=1)
    assert found.index == (f"{column}: No such file or directory",)
    levels = {24} if name == "level-24" else {16, 24}
    assert {each.level for each in found.damaged} == levels
    assert len(found.damaged) == 12 * len(levels)
    assert found.images == 24


def test_index_entry_out_of_range_hides_no_other_damage(copied) -> None:
    root = copied("webdataset")
    entries = np.load(root / "index" / "level-16.npy")
    entries[3, 0] = 2**64 - 1  # the shard
    entries[5, 1] = 2**64 - 1  # the first byte
    np.save(root / "index" / "level-16.npy", entries)
    assert [sample for _, sample, _ in told(verify(root, workers=1))] == [3, 5]


def test_undecodable_image_is_found_only_by_decoding(whole: Path, copied) -> None:
    from feedline.sources.manifest import checksum

    root = copied("folder")
    broken = root / "16" / "cats" / "000000001-1.jpg"
    broken.write_bytes(b"as it was written, and no image")
    entries = np.load(root / "index" / "level-16.npy")
    entries[1, 3] = checksum(broken.read_bytes(), 1, np.array(0, np.int64))
    np.save(root / "index" / "level-16.npy", entries)
    assert verify(root, workers=1).damaged == ()
    found = verify(root, workers=1, decode=True)
    assert told(found) == [(16, 1, "cats/1.jpg")]
    assert "it is not a supported image" in found.damaged[0].why


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers inherit what is set here by fork")
def test_image_that_kills_reader_is_reported_and_others_are_checked(
    copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, read = copied("folder"), LevelReader.read

    def deadly(reader: LevelReader, sample: int):
        if sample == 5 and reader.level.side == 16:
            os.kill(os.getpid(), signal.SIGSEGV)
        return read(reader, sample)

    monkeypatch.setattr(LevelReader, "read", deadly)
    found = verify(root, workers=1)
    assert told(found) == [(16, 5, "cats/5.jpg")]
    assert "ends the process" in found.damaged[0].why
    assert found.images == 24


def test_raw_levels_are_checked(tmp_path: Path) -> None:
    made(photos(tmp_path / "photos"), tmp_path / "raw", raw=True)
    assert verify(tmp_path / "raw", decode=True, workers=1).is_sound
    flip(tmp_path / "raw" / "16" / "000000.tar", 1024)
    assert told(verify(tmp_path / "raw", workers=1)) == [(16, 0, "cats/0.jpg")]
    sizes = np.load(tmp_path / "raw" / "index" / "sizes.npy")
    sizes[4] = 1, 2  # pixels of another shape than the image's
    np.save(tmp_path / "raw" / "index" / "sizes.npy", sizes)
    found = told(verify(tmp_path / "raw", workers=1))
    assert [(level, sample) for level, sample, _ in found] == [(16, 0), (16, 4), (24, 4)]


def test_invalid_cache_is_rejected(tmp_path: Path, copied) -> None:
    with pytest.raises(DatasetError, match="is not a cache"):
        verify(tmp_path)
    root = copied("folder")
    said = json.loads((root / MANIFEST).read_text())
    (root / MANIFEST).write_text(json.dumps({**said, "digests": {"labels": 3}}))
    with pytest.raises(DatasetError, match="is not a valid manifest"):
        verify(root)
