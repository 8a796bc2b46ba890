"""Verification reports all damage of a cache, and nothing else; a repair restores the first build.

Damaged copies are never read as images, and intact ones stay readable.
"""

import itertools
import json
import os
import shutil
import signal
import tarfile
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from caches import FORMATS, everything, flip, flip_copy, kill_after_a_unit, made, photo, stopping
from feedline import ImageFolder, repair_cache
from feedline.cache.damage import Verification, verify
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.cache_format_base import LevelReader
from feedline.sources.manifest import MANIFEST, checksum, read_manifest
from feedline.sources.remote_cache import open_cache
from row_of import row
from slow import slow

NAMES = [f"{name}/{number}.jpg" for name in ("cats", "dogs") for number in range(6)]


def told(found):
    return [(each.level, each.sample, each.name) for each in found.damaged]


@pytest.mark.parametrize("form", FORMATS)
def test_intact_cache_passes(whole, form):
    seen = []
    found = verify(whole(form), decode=True, workers=2, progress=lambda *at: seen.append(at))
    assert found.is_sound
    assert found == Verification(24, (), (), ())
    assert seen[0] == (0, 24)
    assert seen[-1] == (24, 24)


# Each damages a cache and returns the file.


def flip_24(root):
    return flip_copy(root, 7, 24)


HEADERS = [(0, "jpg", 8), (2, "cls", 130), (4, "json", 150), (7, "jpg", 257), (11, "json", 8)]
"""Samples, endings, and positions of name, length, checksum and magic."""


def flip_headers(root):
    shard = root / "24" / "000000.tar"
    with tarfile.open(shard) as tar:
        places = [tar.getmember(f"{sample:09d}.{ending}").offset for sample, ending, _ in HEADERS]
    for place, (_, _, at) in zip(places, HEADERS, strict=True):
        flip(shard, place + at)
    return shard


def take_another_header(root):
    shard = root / "16" / "000000.tar"
    data = bytearray(shard.read_bytes())
    with tarfile.open(shard) as tar:
        to, other = (tar.getmember(f"{sample:09d}.jpg").offset for sample in (3, 5))
    data[to : to + 512] = data[other : other + 512]
    shard.write_bytes(data)
    return shard


def flip_end(root):
    shard = root / "16" / "000000.tar"
    flip(shard, shard.stat().st_size - 700)
    return shard


def rewrite(name, content=None):
    """Give a file another content, or cut it in half."""

    def harm(root):
        whole = (root / name).read_bytes()
        (root / name).write_bytes(whole[: len(whole) // 2] if content is None else content)
        return root / name

    return harm


def remove(name):
    def harm(root):
        (root / name).unlink()
        return root / name

    return harm


EVERY = range(12)


@pytest.mark.parametrize(
    ("kind", "harm", "level", "samples", "is_reported", "is_readable"),
    [
        *((form, flip_24, 24, [7], False, False) for form in FORMATS),
        *((f"{form}, raw", flip_24, 24, [7], False, False) for form in FORMATS),
        ("webdataset", rewrite("16/000000.tar"), 16, EVERY, True, False),
        *(
            ("lmdb", rewrite("16/data.mdb", said), 16, EVERY, True, False)
            for said in (None, b"", b"no LMDB")
        ),
        ("webdataset", remove("16/000000.tar"), 16, EVERY, True, False),
        ("lmdb", remove("24/data.mdb"), 24, EVERY, True, False),
        ("folder", remove("24/cats/000000002-2.jpg"), 24, [2], False, False),
        # What other programs read is damaged, and the images are not.
        ("webdataset", flip_headers, 24, [sample for sample, _, _ in HEADERS], False, True),
        ("webdataset", take_another_header, 16, [3], False, True),
        ("webdataset", flip_end, 16, [11], False, True),
    ],
)
def test_damage_is_reported_exactly_and_repaired(
    whole, copied, kind, harm, level, samples, is_reported, is_readable
):
    """`is_reported`: the file itself; `is_readable`: all images have their pixels."""
    form, _, raw = kind.partition(", ")
    root, intact = copied(form, raw=bool(raw)), whole(form, raw=bool(raw))
    path = harm(root)
    with closing(ImageFolder(root)) as data, closing(ImageFolder(intact)) as wanted:
        for sample in EVERY:
            if sample in samples and not is_readable:
                with pytest.raises(ImageError, match=rf"sample {sample}, .*{NAMES[sample]}"):
                    row(data, sample, level - 4)
            else:
                pixels = (row(each, sample, level - 4)[0] for each in (data, wanted))
                assert np.array_equal(*pixels)
    found = assert_repaired(root, intact)
    assert told(found) == [(level, sample, NAMES[sample]) for sample in samples]
    assert {each.file for each in found.damaged} == {str(path)}
    assert [each.file for each in found.files] == [str(path)] * is_reported
    assert (found.images, found.index) == (24, ())


def assert_repaired(root, whole):
    """Assert that a repair restores the intact cache. Return the damage that it found."""
    found = repair_cache(root, workers=0).verification
    assert not found.is_sound
    assert everything(root) == everything(whole)
    again = repair_cache(root, workers=0)
    assert (again.verification.is_sound, again.images) == (True, 0)
    return found


COLUMNS = ("labels", "keys", "names", "stamps", "sizes", "level-24")
IS_KNOWN_BY_ITS_IMAGES = {"labels": {16, 24}, "keys": {16, 24}, "level-24": {24}}
"""Columns that a checksum of an image includes, or a tar header states, by level."""


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        *itertools.product(COLUMNS, ["reversed"]),
        *itertools.product(["labels", "level-24"], ["missing"]),
    ],
)
def test_damaged_index_is_reported_and_repaired(whole, copied, name, harm):
    root = copied()
    column = root / "index" / f"{name}.npy"
    if harm == "missing":
        column.unlink()
    else:
        np.save(column, np.load(column)[::-1])
    found = assert_repaired(root, whole())
    (reason,) = found.index
    assert reason.startswith(f"{column}: ")
    assert found.images == 24
    levels = IS_KNOWN_BY_ITS_IMAGES.get(name, set())
    assert {each.level for each in found.damaged} == levels
    if harm == "missing":
        assert len(found.damaged) == 12 * len(levels)


def test_unreadable_index_file_is_named(copied):
    root = copied()
    column = root / "index" / "keys.npy"
    whole = column.read_bytes()
    for data in (b"", whole[:-1], whole.replace(b"}", b"{", 1), b"x" + whole, None):
        if data is None:
            column.unlink()
        else:
            column.write_bytes(data)
        with pytest.raises(DatasetError, match=r"(?s)keys\.npy' .*feedline cache repair"):
            ImageFolder(root)
        assert len(verify(root, workers=1).damaged) == 24


def test_index_entry_out_of_range_hides_no_other_damage(copied):
    root = copied()
    entries = np.load(root / "index" / "level-16.npy")
    entries[3, 0] = 2**64 - 1  # the shard
    entries[5, 1] = 2**64 - 1  # the first byte
    np.save(root / "index" / "level-16.npy", entries)
    assert [sample for _, sample, _ in told(verify(root, workers=1))] == [3, 5]


def test_undecodable_image_is_found_only_by_decoding(copied):
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
def test_image_that_kills_reader_is_reported_and_others_are_checked(copied, monkeypatch):
    root, read = copied("folder"), LevelReader.read

    def deadly(reader, sample):
        if sample == 5 and reader.level.side == 16:
            os.kill(os.getpid(), signal.SIGSEGV)
        return read(reader, sample)

    monkeypatch.setattr(LevelReader, "read", deadly)
    found = verify(root, workers=1)
    assert told(found) == [(16, 5, "cats/5.jpg")]
    assert "ends the process" in found.damaged[0].why
    assert found.images == 24


@pytest.mark.parametrize("act", [verify, repair_cache])
def test_invalid_cache_is_rejected(act, tmp_path, copied):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="is not a cache"):
        act(tmp_path / "empty", workers=0)
    assert list((tmp_path / "empty").iterdir()) == []
    root = copied("folder")
    manifest = json.loads((root / MANIFEST).read_text())
    (root / MANIFEST).write_text(json.dumps({**manifest, "digests": {"labels": 3}}))
    with pytest.raises(DatasetError, match="is not a valid manifest"):
        act(root, workers=0)


# Caches of several shards


def cut(root):
    """Cut the largest file of a level short."""
    path = max((root / "24").rglob("*.*"), key=lambda each: each.stat().st_size)
    os.truncate(path, path.stat().st_size // 2)


def remove_file(root):
    min(path for path in (root / "16").rglob("*.*") if path.is_file()).unlink()


@pytest.mark.parametrize("form", ["webdataset", *slow("lmdb", "folder")])
def test_damaged_shard_and_missing_level_are_built_again(whole, copied, form):
    root = copied(form, many=True)
    flip_copy(root, 5, 16)
    shutil.rmtree(root / "24")
    assert_repaired(root, whole(form, many=True))


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="maps are listed on Linux only")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("again", [False, True], ids=["repair", "build"])
@pytest.mark.filterwarnings("ignore:.*is completed from")  # the copied source
def test_no_file_is_mapped_when_it_is_replaced(again, form, copied, tmp_path, monkeypatch):
    """Windows would refuse it."""
    root, replace, replaced = copied(form), os.replace, list[str]()
    flip_copy(root, 5, 16)

    def replace_unmapped(new, old):
        assert str(old) not in Path("/proc/self/maps").read_text()
        replaced.append(str(old))
        replace(new, old)

    monkeypatch.setattr(os, "replace", replace_unmapped)
    if again:
        changed = Path(shutil.copytree(read_manifest(str(root)).source[1], tmp_path / "photos"))
        photo(changed / "cats" / "0.jpg", 99)
        made(changed, root, form)
    else:
        repair_cache(root, workers=0)
    assert any("index" in name for name in replaced)
    assert verify(root, workers=1).is_sound or again


@pytest.mark.parametrize("form", ["webdataset", *slow("lmdb", "folder")])
def test_killed_repair_can_be_repeated(whole, copied, form):
    root = copied(form, many=True)
    for sample in (5, 40, 70):
        flip_copy(root, sample, 24)
    kill_after_a_unit(f"feedline.repair_cache({str(root)!r}, workers=0, progress=progress)")
    assert len(ImageFolder(root)) == 80  # it is a cache all the while
    repair_cache(root, workers=0)
    assert everything(root) == everything(whole(form, many=True))


def test_moved_originals_are_used_and_changed_ones_are_rejected(whole, copied, source, tmp_path):
    root, moved = copied(many=True), tmp_path / "moved"
    flip_copy(root, 5, 24)
    shutil.copytree(source, moved)
    name = open_cache(root).name(5)
    kept = (moved / name).rename(tmp_path / "away.jpg")
    with pytest.raises(DatasetError, match=str(moved)):
        repair_cache(root, source=moved, workers=0)
    photo(moved / name, 3, 1)  # another image of the same name
    with pytest.raises(DatasetError, match=f"{name}.*has another size"):
        repair_cache(root, source=moved, workers=0)
    assert len(verify(root, workers=1).damaged) == 1

    kept.replace(moved / name)
    repair_cache(root, source=moved, workers=0)
    built, shard = whole(many=True), Path("24/000000.tar")
    assert everything(root).keys() == everything(built).keys()
    assert (root / shard).read_bytes() == (built / shard).read_bytes()
    assert read_manifest(str(root)).source == ("folder", str(moved))


def test_skipped_image_stays_skipped(few, tmp_path):
    root = tmp_path / "cache"
    (few / "cats" / "3.jpg").write_bytes(b"no image")
    made(few, root, on_error="skip")
    first = everything(root)
    flip_copy(root, 7, 24)
    flip(root / "index" / "level-16.npy", 200)
    repair_cache(root, workers=0)
    assert everything(root) == first


def test_copies_of_a_dataset_are_repaired_from_it(tmp_path):
    images = [(np.full((40, 40 + n, 3), 5 * n, np.uint8), n % 2) for n in range(8)]
    made(images, tmp_path / "cache", raw=True)
    first = everything(tmp_path / "cache")
    flip(tmp_path / "cache" / "24" / "000000.tar", 2000)
    with pytest.raises(UsageError, match="source"):
        repair_cache(tmp_path / "cache", workers=0)
    repair_cache(tmp_path / "cache", source=images, workers=0)
    assert everything(tmp_path / "cache") == first


def test_a_cache_at_a_url_is_repaired(whole, copied, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    root = copied(many=True)
    for sample, side in ((5, 16), (70, 24)):
        flip_copy(root, sample, side)
    (root / "24" / "000000.tar").unlink()
    (root / ".lock").unlink()  # of the build on this machine
    repair_cache(root.as_uri(), workers=0)
    assert everything(root) == everything(whole(many=True))


# Builds in damaged caches, and from other sources


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("harm", [cut, remove_file])
def test_build_does_not_accept_cache_with_missing_files(whole, copied, form, harm):
    root = copied(form)
    harm(root)
    with pytest.warns(UserWarning, match="feedline cache verify"):
        made(Path(read_manifest(str(root)).source[1]), root, form)
    assert everything(root) == everything(whole(form))


@pytest.mark.parametrize("harm", ["flipped", "missing"])
@pytest.mark.parametrize("changed", [False, True])
def test_build_recreates_damaged_index(few, tmp_path, changed, harm):
    root = tmp_path / "cache"
    made(few, root, sizes=(16,))
    sizes = root / "index" / "sizes.npy"
    written = sizes.read_bytes()
    if harm == "missing":
        sizes.unlink()
    else:
        flip(sizes, len(written) - 4)  # a width, which no checksum of an image knows
    if changed:  # copies of the others are reused if possible
        os.utime(few / "cats" / "0.jpg", (1, 1))
    made(few, root, sizes=(16,))
    assert sizes.read_bytes() == written
    assert verify(root, workers=1).is_sound


def test_build_from_another_source_is_rejected_and_moved_source_is_reported(
    whole, copied, source, few, tmp_path
):
    root = copied(many=True)
    with pytest.raises(UsageError, match=f"{source}.*{few}"):
        made(few, root)
    assert everything(root) == everything(whole(many=True))
    moved = shutil.copytree(source, tmp_path / "moved")
    with pytest.warns(UserWarning, match=f"{source}.*{moved}"):
        made(moved, root)
    (tmp_path / "link").symlink_to(source)
    again = shutil.copytree(whole(many=True), tmp_path / "again")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(tmp_path / "link", again)


def test_unfinished_build_of_another_source_is_reported(tmp_path, source, few):
    root = tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        made(source, root, progress=stopping(1))
    with pytest.warns(UserWarning, match=f"{source}.*{few}"):
        made(few, root)
    assert len(ImageFolder(root)) == 12
