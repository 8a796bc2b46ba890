"""Files of others in and around a cache's folders: no command changes or removes them."""

import errno
import itertools
import os

import pytest

from caches import FORMATS, contents, images, made, photo, spoil
from feedline import repair_cache
from feedline.cache.build import add_size
from feedline.cache.damage import verify
from feedline.errors import FeedlineError, ImageError, ResourceError, UsageError
from feedline.sources.manifest import read_manifest

NOTES = {"notes.txt": b"mine", "cats/drawing.jpg": b"mine, too", "000007.tar.partial": b"and this"}


def with_notes(folder):
    for name, data in NOTES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def home(tmp_path):
    """A folder of somebody's files."""
    return with_notes(tmp_path / "home")


def add_20(source, root):
    return add_size(root, 20, workers=0)


def rebuild(source, root):
    photo(source / "cats" / "3.jpg", 9)
    return made(source, root, read_manifest(str(root)).format)


def repair(source, root):
    return repair_cache(root, workers=0)


def damage(root):
    for path in (root / "16").rglob("*"):
        if path.name in ("000000.tar", "data.mdb", "000000000-0.jpg"):
            os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("form", "name", "act"),
    [
        *itertools.product(FORMATS, ("20", "index", "unfinished-20"), [add_20]),
        ("webdataset", "16", rebuild),
        ("webdataset", "16", repair),
        ("folder", "16/cats", repair),
        ("lmdb", "16/data.mdb", rebuild),
    ],
)
def test_nothing_is_written_through_a_link(tmp_path, root, few, home, form, name, act):
    made(few, root, form)
    if act is repair:
        damage(root)
    link, target = root / name, home
    if link.exists():
        target = link.rename(tmp_path / "moved")
    link.symlink_to(target)
    if name == "16":
        (target / "000099.tar").write_bytes(b"of another cache")
    before, cache = contents(target), contents(root)
    if act is rebuild:
        images(root)  # reading it is no harm
    with pytest.raises(UsageError, match=rf"{link.name}' is a link"):
        act(few, root)
    assert contents(target) == before
    assert act is not add_20 or contents(root) == cache


@pytest.mark.parametrize("form", FORMATS)
def test_existing_folder_is_not_taken_for_a_new_size(root, few, form):
    made(few, root, form)
    with_notes(root / "20")
    before = contents(root)
    with pytest.raises(UsageError, match="20' exists, but is not a folder of the cache"):
        add_20(few, root)
    assert contents(root) == before


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("act", [add_20, rebuild, repair])
def test_foreign_files_in_folders_of_the_cache_stay(tmp_path, root, few, form, act):
    made(few, root, form)
    folders = [root, root / "16", root / "index", root / "unfinished", root / "others"]
    for folder in folders:
        with_notes(folder)
        (folder / "later").mkdir()
    (root / "16" / "elsewhere").symlink_to(with_notes(tmp_path / "elsewhere"))
    if act is repair:
        damage(root)
    act(few, root)
    assert all((folder / "later").is_dir() for folder in folders)
    for folder in (*folders, tmp_path / "elsewhere"):
        assert {name: (folder / name).read_bytes() for name in NOTES} == NOTES
    assert verify(root, workers=1).is_sound


def test_stale_files_of_the_cache_are_removed(root, few):
    made(few, root)
    for name in ("000009.tar", f"000000.tar.{'0a' * 16}.partial"):
        (root / "16" / name).write_bytes(b"of a build that was killed")
    rebuild(few, root)
    assert [path.name for path in (root / "16").iterdir()] == ["000000.tar"]


def test_failed_addition_removes_only_what_it_made(root, few):
    made(few, root)
    spoil(few / "dogs" / "1.jpg")

    def put_notes(state):
        with_notes(root / "20")
        (root / "20" / "later").mkdir(exist_ok=True)

    with pytest.raises(ImageError):
        add_size(root, 20, workers=0, progress=put_notes)
    assert (root / "20" / "later").is_dir()
    assert contents(root / "20") == NOTES


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_lock_that_is_another_file_is_refused(root, few, home, plant):
    made(few, root)
    (root / ".lock").unlink()
    plant(home / "notes.txt", root / ".lock")
    with pytest.raises(ResourceError, match=r"\.lock"):
        add_20(few, root)
    assert contents(home) == NOTES


@pytest.mark.parametrize("contents", [b"", b"\0" * 39, b"123", b"123 0a0b"])
def test_lock_of_a_build_that_lost_power_is_used(root, few, contents):
    made(few, root)
    (root / ".lock").write_bytes(contents)
    add_20(few, root)


def raising(error):
    def fail(*arguments):
        raise OSError(error, os.strerror(error))

    return fail


@pytest.mark.parametrize("call", ["ftruncate", "fsync"])
def test_full_disk_names_the_folder(root, few, monkeypatch, call):
    monkeypatch.setattr(os, call, raising(errno.ENOSPC))
    with pytest.raises(ResourceError, match=r"folder '.*cache': No space left"):
        made(few, root)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other locks")
def test_file_system_without_locks_is_named(root, few, monkeypatch):
    import fcntl

    monkeypatch.setattr(fcntl, "flock", raising(errno.ENOLCK))
    with pytest.raises(FeedlineError, match=r"cannot be locked: No locks"):
        made(few, root)
