"""Adding a level from the source of a cache, or from a source that changed since."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caches import contents, images, made, photo, photos
from feedline.cache.build import add_size
from feedline.errors import DatasetError, UsageError
from feedline.sources.manifest import read_manifest


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """12 photographs of 2 classes."""
    return photos(tmp_path / "photos")


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
