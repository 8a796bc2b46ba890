"""Verifying caches reports all damage, and nothing else."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from caches import EVERY_FORMAT, everything, find, flip, made, photos
from feedline import repair_cache
from feedline.cache.damage import Verification, verify
from feedline.errors import DatasetError
from feedline.sources.archives import TarMember, tar_members
from feedline.sources.cache_format_base import LevelReader
from feedline.sources.manifest import MANIFEST
from feedline.sources.remote_cache import open_cache

Copied = Callable[[str], Path]
NAMES = [f"{name}/{number}.jpg" for name in ("cats", "dogs") for number in range(6)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in each format: 12 images at 16 and 24 px."""
    root = tmp_path_factory.mktemp("whole")
    source = photos(root / "photos")
    for form in EVERY_FORMAT:
        made(source, root / form, form)
    return root


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Copied:
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


@pytest.mark.parametrize("form", EVERY_FORMAT)
@pytest.mark.parametrize("decode", [False, True])
def test_intact_cache_passes(whole: Path, form: str, decode: bool) -> None:
    seen: list[tuple[int, int]] = []
    found = verify(whole / form, decode=decode, workers=2, progress=lambda *at: seen.append(at))
    assert found.is_sound
    assert found == Verification(24, (), (), ())
    assert seen[0] == (0, 24)
    assert seen[-1] == (24, 24)


Harm = Callable[[Path], Path]
"""Damages a cache; returns the file."""


def flip_copy(root: Path) -> Path:
    """Flip a bit of the 24 px copy of sample 7."""
    data = image(root, 7, 24)
    (path,) = (each for each in (root / "24").rglob("*.*") if data in each.read_bytes())
    flip(path, find(path, data) + len(data) // 2)
    return path


def flip_header(sample: int, ending: str, at: int) -> Harm:
    def harm(root: Path) -> Path:
        shard = root / "24" / "000000.tar"
        flip(shard, header_of(shard, f"{sample:09d}.{ending}").offset + at)
        with pytest.raises(DatasetError):
            members(shard)
        return shard

    return harm


def take_another_header(root: Path) -> Path:
    shard = root / "16" / "000000.tar"
    data = bytearray(shard.read_bytes())
    to, other = (header_of(shard, f"{sample:09d}.jpg").offset for sample in (3, 5))
    data[to : to + 512] = data[other : other + 512]
    shard.write_bytes(data)
    return shard


def flip_end(root: Path) -> Path:
    shard = root / "16" / "000000.tar"
    flip(shard, shard.stat().st_size - 700)
    return shard


def rewrite(name: str, content: bytes | None = None) -> Harm:
    """Give a file another content, or cut it in half."""

    def harm(root: Path) -> Path:
        path = root / name
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if content is None else content)
        return path

    return harm


def remove(name: str) -> Harm:
    def harm(root: Path) -> Path:
        (root / name).unlink()
        return root / name

    return harm


HEADERS = itertools.product((0, 7), ("jpg", "cls", "json"), (8, 130, 150, 257))
"""Samples, endings, and positions of name, length, checksum and magic."""
EVERY = range(12)
# Format, damage, level, damaged samples, and whether the file is reported itself.
DAMAGE: list[tuple[str, Harm, int, Iterable[int], bool]] = [
    *((form, flip_copy, 24, [7], False) for form in EVERY_FORMAT),
    *(("webdataset", flip_header(*each), 24, [each[0]], False) for each in HEADERS),
    ("webdataset", take_another_header, 16, [3], False),
    ("webdataset", flip_end, 16, [11], False),
    ("webdataset", rewrite("16/000000.tar"), 16, EVERY, True),
    ("joined", rewrite("16/0.joined"), 16, range(6, 12), True),
    *(("lmdb", rewrite("16/data.mdb", said), 16, EVERY, True) for said in (None, b"", b"no LMDB")),
    ("webdataset", remove("16/000000.tar"), 16, EVERY, True),
    ("lmdb", remove("24/data.mdb"), 24, EVERY, True),
    ("folder", remove("24/cats/000000002-2.jpg"), 24, [2], False),
]


@pytest.mark.parametrize(("form", "harm", "level", "samples", "is_reported"), DAMAGE)
def test_damage_is_reported_exactly_and_repaired(
    whole: Path,
    copied: Copied,
    form: str,
    harm: Harm,
    level: int,
    samples: Iterable[int],
    is_reported: bool,
) -> None:
    root = copied(form)
    path = harm(root)
    found = verify(root, workers=1)
    assert told(found) == [(level, sample, NAMES[sample]) for sample in samples]
    assert {each.file for each in found.damaged} == {str(path)}
    assert [each.file for each in found.files] == [str(path)] * is_reported
    assert (found.images, found.index, found.is_sound) == (24, (), False)
    assert_repaired(root, whole / form)


def assert_repaired(root: Path, whole: Path) -> None:
    repair_cache(root, workers=0)
    assert everything(root) == everything(whole)
    assert verify(root, workers=1).is_sound


@pytest.mark.parametrize("name", ["labels", "keys", "names", "stamps", "level-24"])
def test_missing_or_foreign_index_is_reported_and_repaired(
    whole: Path, copied: Copied, name: str
) -> None:
    root = copied("webdataset")
    column = root / "index" / f"{name}.npy"
    np.save(column, np.load(column)[::-1])
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
    assert_repaired(root, whole / "webdataset")


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
