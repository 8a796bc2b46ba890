"""Builds that are broken off and gone on with, and caches whose source has changed."""

import multiprocessing
import os
import random
import shutil
import sys
import time

import numpy as np
import pytest
import simplejpeg
from PIL import Image

import preloaded
from caches import everything, made, shown, stopping
from feedline import ImageFolder
from feedline.cache.build import add_size, build_cache
from feedline.cache.level_encoder import LevelEncoder
from feedline.errors import DatasetError, UsageError
from slow import slow

lmdb = pytest.importorskip("lmdb")

FORMATS = ["webdataset", *slow("lmdb", "folder")]


def counted(source, root, **options):
    """Build a cache; return it with the number of images that this build made."""
    seen = []
    made = build_cache(source, root, (16, 24), workers=2, progress=seen.append, **options)
    return made, seen[-1].new_images if seen else 0


def assert_same_as_new(root, source, **options):
    """The cache equals one that is built in an empty folder."""
    new = root.with_name("new")
    counted(source, new, **options)
    assert everything(root) == everything(new)


@pytest.mark.parametrize("format", FORMATS)
def test_update_makes_only_shards_with_changes_and_reuses_copies_in_them(
    odd_photos, root, format, monkeypatch
):
    first, number = counted(odd_photos, root, format=format)
    assert number == 70
    assert counted(odd_photos, root, format=format) == (first, 0)
    files = ImageFolder(odd_photos)
    Image.new("RGB", (50, 40), (9, 99, 200)).save(files.path(5))
    (odd_photos / "zoo").mkdir()
    Image.new("RGB", (50, 40), (200, 99, 9)).save(odd_photos / "zoo" / "new.jpg")
    for sample in (40, 69):  # so later images have other numbers
        os.unlink(files.path(sample))
    decoded, make_copies = root.with_name("decoded"), LevelEncoder.make_copies
    decoded.touch()

    def noted(self, image):
        with decoded.open("a") as file:
            file.write("x")
        return make_copies(self, image)

    with monkeypatch.context() as patch:
        patch.setattr(LevelEncoder, "make_copies", noted)
        assert counted(odd_photos, root, format=format)[1] == 69
    looked_at = 64  # by the estimate
    if format == "webdataset":
        assert 2 <= len(decoded.read_text()) - looked_at < 69
    assert_same_as_new(root, odd_photos, format=format)


def build_in_a_process(source, root, format):
    """Build in a forked process, which needs no new imports."""
    options = {"source": source, "root": root, "sizes": (16, 24), "format": format, "workers": 2}
    context = multiprocessing.get_context("fork")
    process = context.Process(target=build_cache, kwargs=options)
    process.start()
    return process


@pytest.mark.parametrize("format", FORMATS)
def test_build_killed_at_any_moment_resumes(odd_photos, root, format):
    started, whole = time.monotonic(), root.with_name("whole")
    build_in_a_process(odd_photos, whole, format).join()
    usual_s, moments = time.monotonic() - started, random.Random(format)
    for _ in range(10):
        process = build_in_a_process(odd_photos, root, format)
        process.join(moments.uniform(0, usual_s))
        process.kill()
        process.join()
        try:
            cache = ImageFolder(root)
        except DatasetError:
            continue
        assert len(shown(root, 16)) == len(cache) == 70  # it was whole, and is
        if moments.random() < 0.5:
            shutil.rmtree(root)
    assert build_cache(odd_photos, root, (16, 24), format=format, workers=2).samples == 70
    assert everything(root) == everything(whole)


def test_leftovers_of_finished_build_do_not_block_the_next(few, root):
    """As of one that was killed between the manifest and the end."""
    saved = root.with_name("saved")

    def save(state):
        if state.new_images == 12:
            shutil.copytree(root / "unfinished", saved)

    build_cache(few, root, (16, 24), workers=1, progress=save)
    saved.rename(root / "unfinished")
    add_size(root, 20, workers=1)
    made = build_cache(few, root, (16, 20, 24), workers=1)
    assert [level.side for level in made.levels] == [16, 20, 24]
    assert not (root / "unfinished").exists()


@pytest.mark.parametrize("finished", [True, False])
def test_build_keeps_existing_qualities(few, root, finished):
    build_cache(few, root, (24,), quality=60, workers=1)
    add_size(root, 16, quality=80, workers=1)
    Image.new("RGB", (50, 40), (9, 99, 200)).save(few / "cats" / "5.jpg")
    if not finished:
        with pytest.raises(KeyboardInterrupt):
            build_cache(few, root, (16, 24), workers=1, progress=stopping(0))
        assert not (root / "feedline-cache.json").exists()
    made = build_cache(few, root, (16, 24), workers=1)
    assert [(level.side, level.quality) for level in made.levels] == [(16, 80), (24, 60)]
    with pytest.raises(UsageError, match="omit the quality"):
        build_cache(few, root, (16, 24), quality=95, workers=1)


FULL = """
import resource, sys
from feedline.cache.build import build_cache
from feedline.sources.cache_formats import _LmdbMerger
from feedline.errors import ResourceError

def fill_the_disk(*given):
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
    return put(*given)

put = _LmdbMerger.put
if sys.argv[3] == "lmdb":  # which takes the whole tar files of a unit
    _LmdbMerger.put = fill_the_disk
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))
try:
    build_cache(sys.argv[1], sys.argv[2], (16, 24), format=sys.argv[3], workers=0)
except ResourceError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of files that raise an error")
@pytest.mark.parametrize("format", FORMATS)
def test_full_disk_is_reported_and_build_resumes_later(odd_photos, root, format):
    command = [sys.executable, "-c", FULL, str(odd_photos), str(root), format]
    full = preloaded.run(command, capture_output=True, text=True)
    assert (full.returncode, full.stderr) == (0, "")
    assert "cannot write" in full.stdout
    assert "the same build" in full.stdout
    assert "Traceback" not in full.stdout
    assert not list(root.rglob("*.partial"))
    counted(odd_photos, root, format=format)
    assert_same_as_new(root, odd_photos, format=format)


@pytest.mark.parametrize("damage", ["empty", "cut", "header"])
def test_damaged_record_is_ignored(odd_photos, root, damage):
    with pytest.raises(KeyboardInterrupt):
        build_cache(odd_photos, root, (16, 24), workers=1, progress=stopping(70))
    path = root / "unfinished" / "000001.npz"
    whole = path.read_bytes()
    torn = {"empty": b"", "cut": whole[: len(whole) // 2], "header": whole.replace(b"}", b"{")}
    path.write_bytes(torn[damage])
    assert counted(odd_photos, root)[1] == 32
    assert_same_as_new(root, odd_photos)


def test_entries_are_removed_from_full_lmdb(tmp_path, root):
    source = tmp_path / "photos"
    (source / "cats").mkdir(parents=True)
    for number in range(96):
        jpeg = simplejpeg.encode_jpeg(np.full((256, 256, 3), number, np.uint8))
        (source / "cats" / f"{number:02}.jpg").write_bytes(jpeg)
    made(source, root, "lmdb", sizes=(256,), raw=True)
    for number in range(64, 96):  # all of a unit, so that nothing is written before it is removed
        (source / "cats" / f"{number}.jpg").unlink()
    for each in (root, tmp_path / "new"):
        made(source, each, "lmdb", sizes=(256,), raw=True)
    assert everything(root) == everything(tmp_path / "new")
