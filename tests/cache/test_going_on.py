"""Builds that are broken off and gone on with, and caches whose source has changed."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

import preloaded
from caches import everything, made, shown
from feedline import ImageFolder
from feedline.cache.build import add_size, build_cache
from feedline.cache.job import BuildState
from feedline.cache.level_encoder import LevelEncoder
from feedline.errors import DatasetError, UsageError
from slow import slow

lmdb = pytest.importorskip("lmdb")


def counted(odd_photos: Path, root: Path, **options: Any) -> tuple[Any, int]:
    """Build a cache; return it with the number of images that this build made."""
    seen: list[BuildState] = []
    made = build_cache(odd_photos, root, (16, 24), workers=2, progress=seen.append, **options)
    return made, seen[-1].new_images if seen else 0


@pytest.mark.parametrize("format", ["webdataset", *slow("lmdb", "folder")])
def test_update_rebuilds_only_changed_images(odd_photos: Path, tmp_path: Path, format: Any) -> None:
    first, made = counted(odd_photos, tmp_path / "cache", format=format)
    assert made == 70
    assert counted(odd_photos, tmp_path / "cache", format=format) == (first, 0)
    files = ImageFolder(odd_photos)
    Image.new("RGB", (50, 40), (9, 99, 200)).save(files.path(5))
    os.unlink(files.path(69))
    extra = odd_photos / "zoo" / "new.jpg"
    extra.parent.mkdir()
    Image.new("RGB", (50, 40), (200, 99, 9)).save(extra)
    os.unlink(files.path(40))
    _, made = counted(odd_photos, tmp_path / "cache", format=format)
    assert made == 69  # by shards, in which a copy of an unchanged image is taken over
    counted(odd_photos, tmp_path / "new", format=format)
    assert everything(tmp_path / "cache") == everything(tmp_path / "new")


def test_copies_of_unchanged_images_are_reused(
    odd_photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted(odd_photos, tmp_path / "cache")
    os.unlink(ImageFolder(odd_photos).path(0))  # every later image has another number now
    decoded = tmp_path / "decoded"
    decoded.write_text("")
    copies = LevelEncoder.make_copies

    def noted(self: Any, image: Any) -> Any:
        with decoded.open("a") as file:
            file.write("x")
        return copies(self, image)

    monkeypatch.setattr("feedline.cache.level_encoder.LevelEncoder.make_copies", noted)
    _, made = counted(odd_photos, tmp_path / "cache")
    looked_at = 64  # by the estimate
    assert made == 69
    assert len(decoded.read_text()) - looked_at < 69
    counted(odd_photos, tmp_path / "new")
    assert everything(tmp_path / "cache") == everything(tmp_path / "new")


def build_in_a_process(*arguments: Any) -> multiprocessing.process.BaseProcess:
    """Build in a forked process, which needs no new imports."""
    process = multiprocessing.get_context("fork").Process(target=_alone, args=arguments)
    process.start()
    return process


def _alone(odd_photos: Path, root: Path, format: Any) -> None:
    build_cache(odd_photos, root, (16, 24), format=format, workers=2)


@pytest.mark.parametrize("format", ["webdataset", *slow("lmdb", "folder")])
def test_build_killed_at_any_moment_resumes(odd_photos: Path, tmp_path: Path, format: Any) -> None:
    started = time.monotonic()
    process = build_in_a_process(odd_photos, tmp_path / "whole", format)
    process.join()
    usual_s = time.monotonic() - started
    root, moments = tmp_path / "cache", random.Random(format)
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
    made = build_cache(odd_photos, root, (16, 24), format=format, workers=2)
    assert made.samples == 70
    assert everything(root) == everything(tmp_path / "whole")


def test_leftovers_of_finished_build_do_not_block_the_next(
    odd_photos: Path, tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    counted(odd_photos, root)
    saved = tmp_path / "unfinished"
    # As of one that was killed between the manifest and the end.
    build_cache(odd_photos, tmp_path / "other", (16, 24), progress=lambda said: copied(said, saved))
    shutil.copytree(saved, root / "unfinished")
    add_size(root, 20, workers=1)
    made = build_cache(odd_photos, root, (16, 20, 24), workers=1)
    assert [level.side for level in made.levels] == [16, 20, 24]
    assert not (root / "unfinished").exists()


def copied(said: BuildState, to: Path) -> None:
    if said.new_images == 70:
        shutil.copytree(to.parent / "other" / "unfinished", to)


@pytest.mark.parametrize("finished", [True, False])
def test_build_keeps_existing_qualities(odd_photos: Path, tmp_path: Path, finished: bool) -> None:
    root = tmp_path / "cache"
    build_cache(odd_photos, root, (24,), quality=60, workers=1)
    add_size(root, 16, quality=80, workers=1)
    Image.new("RGB", (50, 40), (9, 99, 200)).save(ImageFolder(odd_photos).path(5))
    if not finished:

        def stop(said: BuildState) -> None:
            raise RuntimeError("stopped")

        with pytest.raises(RuntimeError, match="stopped"):
            build_cache(odd_photos, root, (16, 24), workers=1, progress=stop)
        assert not (root / "feedline-cache.json").exists()
    made = build_cache(odd_photos, root, (16, 24), workers=1)
    assert [(level.side, level.quality) for level in made.levels] == [(16, 80), (24, 60)]
    with pytest.raises(UsageError, match="omit the quality"):
        build_cache(odd_photos, root, (16, 24), quality=95, workers=1)


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
@pytest.mark.parametrize("format", ["webdataset", *slow("lmdb", "folder")])
def test_full_disk_is_reported_and_build_resumes_later(
    odd_photos: Path, tmp_path: Path, format: Any
) -> None:
    root = tmp_path / "cache"
    full = preloaded.run(
        [sys.executable, "-c", FULL, str(odd_photos), str(root), format],
        capture_output=True,
        text=True,
    )
    assert (full.returncode, full.stderr) == (0, "")
    assert "cannot write" in full.stdout
    assert "the same build" in full.stdout
    assert "Traceback" not in full.stdout
    assert not list(root.rglob("*.partial"))
    counted(odd_photos, root, format=format)
    counted(odd_photos, tmp_path / "new", format=format)
    assert everything(root) == everything(tmp_path / "new")


@pytest.mark.parametrize("damage", ["empty", "cut", "header"])
def test_damaged_record_is_ignored(odd_photos: Path, tmp_path: Path, damage: str) -> None:
    root = tmp_path / "cache"

    def stop(said: BuildState) -> None:
        if said.new_images == 70:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        build_cache(odd_photos, root, (16, 24), workers=1, progress=stop)
    path = root / "unfinished" / "000001.npz"
    whole = path.read_bytes()
    torn = {"empty": b"", "cut": whole[: len(whole) // 2], "header": whole.replace(b"}", b"{")}
    path.write_bytes(torn[damage])
    assert counted(odd_photos, root)[1] == 32
    counted(odd_photos, tmp_path / "new")
    assert everything(root) == everything(tmp_path / "new")


pytest.importorskip("lmdb")


def test_entries_are_removed_from_full_lmdb(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    (source / "cats").mkdir(parents=True)
    for number in range(96):
        pixels = np.full((256, 256, 3), number, np.uint8)
        jpeg = simplejpeg.encode_jpeg(pixels)
        (source / "cats" / f"{number:02}.jpg").write_bytes(jpeg)
    made(source, tmp_path / "cache", "lmdb", sizes=(256,), raw=True)
    for number in range(64, 96):  # all of a unit, so that nothing is written before it is removed
        (source / "cats" / f"{number}.jpg").unlink()
    made(source, tmp_path / "cache", "lmdb", sizes=(256,), raw=True)
    made(source, tmp_path / "new", "lmdb", sizes=(256,), raw=True)
    assert everything(tmp_path / "cache") == everything(tmp_path / "new")
