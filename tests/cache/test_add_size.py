"""Adding a level to a cache: as if it had been built with it, and nothing else changed."""

import shutil

import numpy as np
import pytest

from caches import FORMATS, contents, images, kill_after_a_unit, made, photo, spoil, stopping
from feedline import DataLoader, ImageFolder
from feedline.cache.build import add_size
from feedline.cache.damage import verify
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.manifest import MANIFEST, read_manifest
from feedline.sources.remote_cache import open_cache
from slow import slow

ALL = (16, 20, 24)


@pytest.mark.parametrize("form", FORMATS)
def test_added_level_equals_build_of_all_levels(tmp_path, root, few, form):
    made(few, root, form)
    made(few, tmp_path / "all", form, sizes=ALL)
    before = contents(root, but=(MANIFEST,))
    manifest = add_size(root, 20, workers=0)
    assert manifest == read_manifest(root) == read_manifest(tmp_path / "all")
    after = contents(root, but=(MANIFEST,))
    assert {name: after[name] for name in before} == before
    assert images(root) == images(tmp_path / "all")
    if form != "lmdb":
        assert after == contents(tmp_path / "all", but=(MANIFEST,))
    assert verify(root, workers=1).is_sound


@pytest.mark.parametrize("form", ["webdataset", *slow("lmdb", "folder")])
def test_levels_are_readable_during_addition(copied, form):
    root = copied(form, many=True)
    dataset, during = ImageFolder(root), []

    def look(state):
        if state.new_images:
            store = open_cache(root)
            during.append([level.side for level in store.manifest.levels])
            assert store.read(79, 24) == dataset.store.read(79, 24)
            store.close()

    with DataLoader(dataset, 16, image_size=24, num_workers=1) as loader:
        assert sum(len(batch) for batch, _ in loader) == 80
        add_size(root, 20, workers=1, progress=look)
        assert sum(len(batch) for batch, _ in loader) == 80
    assert during == [[16, 24]] * 3
    # A replacement worker unpickles the dataset, whose cache has one more level now.
    with DataLoader(dataset, 16, image_size=20, num_workers=1) as loader:
        assert sum(len(batch) for batch, _ in loader) == 80


@pytest.mark.parametrize("form", ["webdataset", *slow("lmdb", "folder")])
def test_killed_addition_resumes(tmp_path, copied, source, form):
    root = copied(form, many=True)
    before = contents(root)
    kill_after_a_unit(f"add_size({str(root)!r}, 20, workers=0, progress=progress)")
    assert {name: data for name, data in contents(root).items() if name in before} == before
    assert verify(root, workers=1).is_sound

    seen = []
    add_size(root, 20, workers=1, progress=seen.append)
    assert (seen[0].images, seen[-1].new_images) == (32, 48)  # one unit of three was done
    made(source, tmp_path / "all", form, sizes=ALL)
    assert images(root) == images(tmp_path / "all")
    assert verify(root, workers=1).is_sound
    left = {path.name for path in root.iterdir()}
    assert left == {".lock", "16", "20", "24", MANIFEST, "index"}


def test_addition_and_build_do_not_share_progress_records(tmp_path, root, few):
    manifest = made(few, root)

    def stop(state):
        if state.new_images:
            assert [path.name for path in root.glob("unfinished*")] == ["unfinished-20"]
        stopping(1)(state)

    with pytest.raises(KeyboardInterrupt):
        add_size(root, 20, workers=0, progress=stop)
    said = r"unfinished-20' holds an unfinished build .* px JPEG q40"
    with pytest.raises(UsageError, match=said):
        add_size(root, 20, quality=40, workers=0)
    assert made(few, root) == manifest
    photo(few / "cats" / "3.jpg", 9)
    seen = []
    made(few, root, progress=seen.append)
    assert seen[-1].new_images == 12
    seen.clear()
    add_size(root, 20, workers=0, progress=seen.append)
    assert seen[-1].new_images == 12  # its entry belonged to the old photograph
    assert verify(root, workers=1).is_sound
    made(few, tmp_path / "all", sizes=ALL)
    assert images(root) == images(tmp_path / "all")


def test_addition_stopped_at_the_end_is_complete(root, few):
    made(few, root)
    manifest = add_size(root, 20, workers=0)
    (root / "unfinished-20").mkdir()
    assert add_size(root, 20, workers=0) == manifest
    with pytest.raises(UsageError, match="already has copies of 20 px"):
        add_size(root, 20, workers=0)


def test_added_level_inherits_quality_rawness_and_skipped_images(tmp_path, root, few):
    (few / "cats" / "2.jpg").write_bytes(b"\xff\xd8\xff torn")
    made(few, root, quality=70, on_error="skip")
    photo(few / "cats" / "2.jpg", 2)  # repaired, but not a sample of the cache
    manifest = add_size(root, 20, workers=0)
    assert [level.quality for level in manifest.levels] == [70, 70, 70]
    assert (manifest.samples, len(manifest.skipped)) == (11, 1)
    manifest = add_size(root, 22, quality=40, workers=0)
    assert [level.quality for level in manifest.levels] == [70, 70, 40, 70]
    assert verify(root, decode=True, workers=1).is_sound

    raw = tmp_path / "raw"
    made(few, raw, raw=True)
    assert [level.quality for level in add_size(raw, 20, workers=0).levels] == [None] * 3
    with pytest.raises(UsageError, match=r"quality 90 .* raw pixels"):
        add_size(raw, 22, quality=90, workers=0)


def test_unreadable_original_is_named_and_leaves_no_level(root, few):
    made(few, root)
    before = contents(root)
    spoil(few / "dogs" / "1.jpg")
    with pytest.raises(ImageError, match=r"sample 7, dogs/1\.jpg"):
        add_size(root, 20, workers=0)
    assert contents(root) == before
    assert not (root / "20").exists()


def test_missing_cache_or_size_raises_and_changes_nothing(root, few):
    with pytest.raises(DatasetError, match="is not a cache"):
        add_size(few, 20)
    assert {path.name for path in few.iterdir()} == {"cats", "dogs"}
    made(few, root)
    for size in (0, 7, 10_000, True):
        with pytest.raises(UsageError, match="must be from 8 to 8192"):
            add_size(root, size)
    shutil.rmtree(root / "index")
    with pytest.raises(DatasetError, match="cannot be read"):
        add_size(root, 20)


CHANGES = {
    "changed": (
        lambda few: photo(few / "cats" / "3.jpg", 15),
        r"sample 3, 'cats/3\.jpg', has another size or modification time",
    ),
    "removed": (lambda few: (few / "dogs" / "5.jpg").unlink(), r"it has 11 samples, before 12"),
    "renamed": (
        lambda few: (few / "dogs" / "2.jpg").rename(few / "dogs" / "20.jpg"),
        r"sample 8 is 'dogs/20\.jpg', before 'dogs/2\.jpg'",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_source_is_rejected_and_difference_is_named(root, few, change):
    made(few, root)
    before = contents(root)
    act, said = CHANGES[change]
    act(few)
    with pytest.raises(DatasetError, match=said) as refused:
        add_size(root, 20, workers=0)
    assert f"feedline cache build {few} {root} --sizes 16,24" in str(refused.value)
    assert contents(root) == before


def test_source_that_changes_during_addition_is_rejected(root, few):
    made(few, root)
    manifest = read_manifest(root)

    def change(state):
        if not state.new_images:
            photo(few / "cats" / "3.jpg", 15)

    with pytest.raises(DatasetError, match=r"sample 3, 'cats/3\.jpg', has another size in pixels"):
        add_size(root, 20, workers=0, progress=change)
    assert read_manifest(root) == manifest


def test_moved_source_is_named_in_error(tmp_path, root, few):
    made(few, root)
    few.rename(tmp_path / "moved")
    with pytest.raises(DatasetError, match=rf"(?s)'{few}': .*no such folder.*source="):
        add_size(root, 20, workers=0)
    assert len(add_size(root, 20, source=tmp_path / "moved", workers=0).levels) == 3


def dataset(labels, width=44):
    """A Dataset of (pixels, float label)."""
    return [
        (np.full((40, width, 3), 20 * number, np.uint8), np.float32(label))
        for number, label in enumerate(labels)
    ]


LABELS = [0.5, float("nan"), 2.5, 3.5]


def test_changes_of_a_passed_dataset_are_detected(tmp_path, root):
    made(dataset(LABELS), root)
    manifest = read_manifest(root)
    with pytest.raises(UsageError, match=r"(?s)a Dataset, .*source="):
        add_size(root, 20, workers=0)
    for other, said in [
        (dataset(LABELS[:3]), "it has 3 samples, before 4"),
        (dataset([*LABELS[:3], 9.0]), "sample 3, '00000003', has another label"),
        (dataset(LABELS, width=43), "sample 0, '00000000', has another size in pixels"),
    ]:
        with pytest.raises(DatasetError, match=said):
            add_size(root, 20, source=other, workers=0)
    assert read_manifest(root) == manifest
    add_size(root, 20, source=dataset(LABELS), workers=0)
    made(dataset(LABELS), tmp_path / "all", sizes=ALL)
    assert images(root) == images(tmp_path / "all")


def test_shards_that_a_pattern_names_are_found_again(tmp_path, root, few):
    made(few, tmp_path / "first", sizes=(40,))
    shards = tmp_path / "first" / "40" / "*.tar"
    made(shards, root)
    add_size(root, 20, workers=0)
    made(shards, tmp_path / "all", sizes=ALL)
    assert images(root) == images(tmp_path / "all")
