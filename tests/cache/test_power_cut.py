"""Durability: when a record marks a unit as done, all of it is on disk, even after a power cut.

No power is cut. The calls that flush files are recorded, and their order is checked when a record
or the manifest gets its name.
"""

import os
from pathlib import Path

import pytest

from caches import FORMATS, contents, made, photo, photos
from feedline.cache import destination
from feedline.cache.shard import ShardTransfer
from feedline.sources.cache_formats import _LmdbMerger
from feedline.sources.lmdb_reader import LMDB_FILE
from feedline.sources.manifest import MANIFEST, UNFINISHED, shard_name

lmdb = pytest.importorskip("lmdb")

PER_CLASS = 40  # three units
LEVELS = ("16", "24")


class Disk:
    """Records flushes in order.

    Attributes:
        bytes: number of bytes flushed, by device and inode of the file.
        named: number of the call that gave a path its name, or created the folder.
        listed: number of the call that last flushed the entries of a folder.
        checked: number of records and manifests that were checked.
        then: called with the path before a file gets its name.
    """

    def __init__(self, monkeypatch):
        self.bytes = {}
        self.named = {}
        self.listed = {}
        self.calls = self.checked = 0
        self.then = lambda path: None
        fsync, replace, mkdir = os.fsync, os.replace, os.mkdir

        def noted_fsync(descriptor):
            fsync(descriptor)
            self.calls += 1
            status = os.fstat(descriptor)
            place = status.st_dev, status.st_ino
            self.bytes[place] = status.st_size
            self.listed[place] = self.calls

        def noted_replace(source, target):
            self.then(Path(target))
            replace(source, target)
            self.calls += 1
            self.named[Path(target)] = self.calls

        def noted_mkdir(path, *arguments, **options):
            mkdir(path, *arguments, **options)
            self.calls += 1
            self.named[Path(path)] = self.calls

        monkeypatch.setattr(os, "mkdir", noted_mkdir)
        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "replace", noted_replace)

    def holds(self, path, root):
        """Return True if the file would exist completely after a power cut now."""
        status = path.stat()
        if self.bytes.get((status.st_dev, status.st_ino)) != status.st_size:
            return False
        above = [folder for folder in path.parents if root in folder.parents]
        return all(self.lists(each.parent, self.named[each]) for each in (path, *above))

    def lists(self, folder, since):
        """Return True if the entries of a folder were flushed since a call."""
        status = folder.stat()
        return self.listed.get((status.st_dev, status.st_ino), 0) > since


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def images_below(root, levels=LEVELS):
    """The shards of some levels, or their single images."""
    found = [path for level in levels for path in (root / level).rglob("*") if path.is_file()]
    ours = [path for path in found if path.suffix in (".tar", ".jpg", ".npy")]
    assert ours
    return ours


def watch(disk, root, levels=LEVELS):
    """See, when a record gets its name, whether the files of its unit are on the disk."""

    def then(path):
        if path.suffix == ".npz":
            disk.checked += 1
            assert [each for each in images_below(root, levels) if not disk.holds(each, root)] == []

    disk.then = then


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_unit_is_recorded_as_done_only_after_it_is_on_disk(disk, source, tmp_path, format, raw):
    root = tmp_path / "cache"
    watch(disk, root)
    made(source, root, format, raw=raw)
    assert disk.checked == 3


@pytest.mark.parametrize("format", FORMATS)
def test_transferred_unit_is_recorded_only_after_it_is_on_disk(
    disk, source, tmp_path, monkeypatch, format
):
    # As if those who make units saw another folder than the builder's.
    elsewhere = ShardTransfer(token="a lock that is nowhere")
    monkeypatch.setattr(destination.Destination, "transfer", lambda self, is_remote: elsewhere)
    root = tmp_path / "cache"
    watch(disk, root)
    made(source, root, format)
    assert disk.checked == 3
    disk.then = lambda path: None
    monkeypatch.undo()
    made(source, tmp_path / "here", format)
    assert contents(root) == contents(tmp_path / "here")


def test_lmdb_is_flushed_before_its_tar_files_are_removed(disk, source, tmp_path, monkeypatch):
    root, opened, put = tmp_path / "cache", [], _LmdbMerger.put
    really_open, unlink = lmdb.open, Path.unlink
    began = []

    def open_lmdb(*arguments, **options):
        opened.append(really_open(*arguments, **options))
        return opened[-1]

    def noted_put(writer, unit):
        began.append(disk.calls)
        put(writer, unit)

    def noted_unlink(path, missing_ok=False):
        if path.name == shard_name(len(began) - 1) and path.exists():
            disk.checked += 1
            # Each of their transactions is on the disk when it is done.
            flags = [environment.flags() for environment in opened]
            assert [(each["sync"], each["metasync"]) for each in flags] == [(True, True)] * 2
            for level in LEVELS:
                assert (root / level / LMDB_FILE).exists()
                assert disk.lists(root / level, began[-1])
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(lmdb, "open", open_lmdb)
    monkeypatch.setattr(_LmdbMerger, "put", noted_put)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    made(source, root, "lmdb")
    assert disk.checked == 3 * len(LEVELS)


@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_has_its_manifest_or_its_records(disk, tmp_path, monkeypatch, format):
    source, root = photos(tmp_path / "photos", PER_CLASS), tmp_path / "cache"
    remove, unlink = os.unlink, Path.unlink

    def noted_remove(path):
        if Path(path) == root / UNFINISHED / "settings.json":
            disk.checked += 1
            assert disk.lists(root, disk.named[root / MANIFEST])
        remove(path)

    def noted_unlink(path, missing_ok=False):
        if path == root / MANIFEST and path.exists():
            disk.checked += 1
            records = [root / UNFINISHED / f"{unit:06d}.npz" for unit in range(3)]
            records.append(root / UNFINISHED / "settings.json")
            assert all(disk.holds(record, root) for record in records)
            assert disk.lists(root, disk.named[records[-1]])
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(os, "unlink", noted_remove)
    monkeypatch.setattr(Path, "unlink", noted_unlink)
    made(source, root, format)
    assert disk.checked == 1
    photo(source / "cats" / "3.jpg", 7, 1)
    made(source, root, format)
    assert disk.checked == 3
