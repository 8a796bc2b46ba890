"""Adding a level to a cache: as if it had been built with it, and nothing else changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import feedline
import preloaded
from caches import FORMATS, STOPPED, contents, environment, images, made, photo, photos, stopping
from feedline.cache.build import add_size
from feedline.cache.damage import verify
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.manifest import MANIFEST, read_manifest
from feedline.sources.remote_cache import open_cache
from slow import slow


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """12 photographs of 2 classes."""
    return photos(tmp_path / "photos")


@pytest.mark.parametrize("form", FORMATS)
def test_added_level_equals_build_of_all_levels(tmp_path, few, form) -> None:
    made(few, tmp_path / "cache", form, sizes=(16, 24))
    made(few, tmp_path / "all", form, sizes=(16, 20, 24))
    before = contents(tmp_path / "cache", but=(MANIFEST,))
    manifest = add_size(tmp_path / "cache", 20, workers=0)
    assert manifest == read_manifest(tmp_path / "cache") == read_manifest(tmp_path / "all")
    after = contents(tmp_path / "cache", but=(MANIFEST,))
    assert {name: after[name] for name in before} == before
    assert images(tmp_path / "cache") == images(tmp_path / "all")
    if form != "lmdb":
        assert after == contents(tmp_path / "all", but=(MANIFEST,))
    assert verify(tmp_path / "cache", workers=1).is_sound


@pytest.mark.parametrize("form", ["webdataset", *slow("lmdb", "folder")])
def test_levels_are_readable_during_addition(tmp_path, source, form) -> None:
    made(source, tmp_path / "cache", form)
    dataset = feedline.ImageFolder(tmp_path / "cache")
    while_it_is_made = []

    def look(said: object) -> None:
        if said.new_images:
            store = open_cache(tmp_path / "cache")
            while_it_is_made.append(store.manifest.levels)
            assert store.read(79, 24) == dataset.store.read(79, 24)
            store.close()

    with feedline.DataLoader(dataset, 16, image_size=24, num_workers=1) as loader:
        before = sum(len(batch) for batch, _ in loader)
        add_size(tmp_path / "cache", 20, workers=1, progress=look)
        assert sum(len(batch) for batch, _ in loader) == before == 80
    assert len(while_it_is_made) == 3
    assert all([level.side for level in had] == [16, 24] for had in while_it_is_made)
    # A replacement worker unpickles the dataset, whose cache has one more level now.
    with feedline.DataLoader(dataset, 16, image_size=20, num_workers=1) as loader:
        assert sum(len(batch) for batch, _ in loader) == 80


@pytest.mark.parametrize("form", ["webdataset", *slow("lmdb", "folder")])
def test_killed_addition_resumes(tmp_path, source, form) -> None:
    root = tmp_path / "cache"
    made(source, root, form)
    before = contents(root)
    command = stopping(f"add_size({str(root)!r}, 20, workers=0, progress=progress)")
    ended = preloaded.run(command, capture_output=True, timeout=60, env=environment())
    assert ended.returncode == STOPPED, ended.stderr
    assert {name: data for name, data in contents(root).items() if name in before} == before
    assert verify(root, workers=1).is_sound

    seen = []
    add_size(root, 20, workers=1, progress=seen.append)
    assert (seen[0].images, seen[-1].new_images) == (32, 48)  # one unit of three was done
    made(source, tmp_path / "all", form, sizes=(16, 20, 24))
    assert images(root) == images(tmp_path / "all")
    assert verify(root, workers=1).is_sound
    assert sorted(path.name for path in root.iterdir()) == sorted(
        [".lock", "16", "20", "24", MANIFEST, "index"]
    )


def test_addition_and_build_do_not_share_progress_records(tmp_path, few) -> None:
    root = tmp_path / "cache"
    manifest = made(few, root)
    left: list[str] = []

    def stop(said: object) -> None:
        if said.new_images:
            left.extend(sorted(path.name for path in root.glob("unfinished*")))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_size(root, 20, workers=0, progress=stop)
    assert left == ["unfinished-20"]
    with pytest.raises(
        UsageError, match=r"unfinished-20' holds an unfinished build .* px JPEG q40"
    ):
        add_size(root, 20, quality=40, workers=0)
    assert made(few, root) == manifest
    photo(few / "cats" / "3.jpg", 9)
    seen: list[object] = []
    made(few, root, progress=seen.append)
    assert seen[-1].new_images == 12
    seen.clear()
    add_size(root, 20, workers=0, progress=seen.append)
    assert seen[-1].new_images == 12  # its entry belonged to the old photograph
    assert verify(root, workers=1).is_sound
    made(few, tmp_path / "all", sizes=(16, 20, 24))
    assert images(root) == images(tmp_path / "all")


def test_addition_stopped_at_the_end_is_complete(tmp_path, few) -> None:
    root = tmp_path / "cache"
    made(few, root)
    manifest = add_size(root, 20, workers=0)
    (root / "unfinished-20").mkdir()
    assert add_size(root, 20, workers=0) == manifest
    with pytest.raises(UsageError, match="already has copies of 20 px"):
        add_size(root, 20, workers=0)


def test_added_level_inherits_quality_rawness_and_skipped_images(tmp_path, few) -> None:
    (few / "cats" / "2.jpg").write_bytes(b"\xff\xd8\xff torn")
    root = tmp_path / "cache"
    made(few, root, quality=70, on_error="skip")
    photo(few / "cats" / "2.jpg", 2)  # repaired, but not a sample of the cache
    manifest = add_size(root, 20, workers=0)
    assert [level.quality for level in manifest.levels] == [70, 70, 70]
    assert manifest.samples == 11
    assert len(manifest.skipped) == 1
    assert [level.quality for level in add_size(root, 22, quality=40, workers=0).levels] == [
        70,
        70,
        40,
        70,
    ]
    assert verify(root, decode=True, workers=1).is_sound

    raw = tmp_path / "raw"
    made(few, raw, raw=True)
    assert [level.quality for level in add_size(raw, 20, workers=0).levels] == [None] * 3
    with pytest.raises(UsageError, match=r"quality 90 .* raw pixels"):
        add_size(raw, 22, quality=90, workers=0)


def test_unreadable_original_is_named_and_leaves_no_level(tmp_path, few) -> None:
    root = tmp_path / "cache"
    made(few, root)
    before = contents(root)
    broken = few / "dogs" / "1.jpg"
    times, size = broken.stat(), broken.stat().st_size
    broken.write_bytes(b"\0" * size)
    os.utime(broken, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(ImageError, match=r"sample 7, dogs/1\.jpg"):
        add_size(root, 20, workers=0)
    assert contents(root) == before
    assert not (root / "20").exists()


def test_missing_cache_or_size_raises_and_changes_nothing(tmp_path, few) -> None:
    with pytest.raises(DatasetError, match="is not a cache"):
        add_size(few, 20)
    assert sorted(path.name for path in few.iterdir()) == ["cats", "dogs"]
    made(few, tmp_path / "cache")
    for size in (0, 7, 10_000, True):
        with pytest.raises(UsageError, match="must be from 8 to 8192"):
            add_size(tmp_path / "cache", size)
    shutil.rmtree(tmp_path / "cache" / "index")
    with pytest.raises(DatasetError, match="cannot be read"):
        add_size(tmp_path / "cache", 20)


def changed(few: Path) -> None:
    photo(few / "cats" / "3.jpg", 15)


def removed(few: Path) -> None:
    (few / "dogs" / "5.jpg").unlink()


def renamed(few: Path) -> None:
    (few / "dogs" / "2.jpg").rename(few / "dogs" / "20.jpg")


def moved(few: Path) -> None:
    (few / "cats" / "5.jpg").rename(few / "dogs" / "5a.jpg")


def added(few: Path) -> None:
    photo(few / "dogs" / "9.jpg", 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed, r"sample 3, 'cats/3\.jpg', has another size or modification time"),
        (removed, r"it has 11 samples, before 12"),
        (renamed, r"sample 8 is 'dogs/20\.jpg', before 'dogs/2\.jpg'"),
        (moved, r"sample 5 is 'dogs/0\.jpg', before 'cats/5\.jpg'"),
        (added, r"it has 13 samples, before 12"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_changed_source_is_rejected_and_difference_is_named(tmp_path, few, change, said) -> None:
    made(few, tmp_path / "cache")
    before = contents(tmp_path / "cache")
    change(few)
    with pytest.raises(DatasetError, match=said) as refused:
        add_size(tmp_path / "cache", 20, workers=0)
    assert f"feedline cache build {few} {tmp_path / 'cache'} --sizes 16,24" in str(refused.value)
    assert contents(tmp_path / "cache") == before


def test_source_that_changes_during_addition_is_rejected(tmp_path, few) -> None:
    root = tmp_path / "cache"
    made(few, root)
    manifest = read_manifest(root)

    def change(said: object) -> None:
        if not said.new_images:
            photo(few / "cats" / "3.jpg", 15)

    with pytest.raises(DatasetError, match=r"sample 3, 'cats/3\.jpg', has another size in pixels"):
        add_size(root, 20, workers=0, progress=change)
    assert read_manifest(root) == manifest


def test_moved_source_is_named_in_error(tmp_path, few) -> None:
    made(few, tmp_path / "cache")
    few.rename(tmp_path / "moved")
    said = rf"(?s)'{few}': .*no such folder.*source="
    with pytest.raises(DatasetError, match=said):
        add_size(tmp_path / "cache", 20, workers=0)
    assert len(add_size(tmp_path / "cache", 20, source=tmp_path / "moved", workers=0).levels) == 3


class Made:
    """A Dataset of (pixels, float label)."""

    def __init__(self, labels: list[float], width: int = 44) -> None:
        self.labels, self.width = labels, width

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        pixels = np.full((40, self.width, 3), 20 * index, np.uint8)
        return pixels, np.float32(self.labels[index])


LABELS = [0.5, float("nan"), 2.5, 3.5]


def test_changes_of_a_passed_dataset_are_detected(tmp_path) -> None:
    root = tmp_path / "cache"
    made(Made(LABELS), root)
    manifest = read_manifest(root)
    with pytest.raises(UsageError, match=r"(?s)a Dataset, .*source="):
        add_size(root, 20, workers=0)
    for other, said in [
        (Made(LABELS[:3]), "it has 3 samples, before 4"),
        (Made([0.5, float("nan"), 2.5, 9.0]), "sample 3, '00000003', has another label"),
        (Made(LABELS, width=43), "sample 0, '00000000', has another size in pixels"),
    ]:
        with pytest.raises(DatasetError, match=said):
            add_size(root, 20, source=other, workers=0)
    assert read_manifest(root) == manifest
    add_size(root, 20, source=Made(LABELS), workers=0)
    made(Made(LABELS), tmp_path / "all", sizes=(16, 20, 24))
    assert images(root) == images(tmp_path / "all")


def test_shards_that_a_pattern_names_are_found_again(tmp_path, few) -> None:
    made(few, tmp_path / "first", sizes=(40,))
    shards = tmp_path / "first" / "40" / "*.tar"
    made(shards, tmp_path / "cache")
    add_size(tmp_path / "cache", 20, workers=0)
    made(shards, tmp_path / "all", sizes=(16, 20, 24))
    assert images(tmp_path / "cache") == images(tmp_path / "all")
