"""Finding training and validation images under a folder."""

from pathlib import Path

import pytest
from tiny_training import write_tiny_set

from feedline.errors import DatasetError
from feedline.sources.folder import VAL_NAMES
from feedline.train.data import TrainData, find_splits, label_map


def make(root, *folders):
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("folders", "train", "val", "notes"),
    [
        *((f"train/ant {name}/ant", "train", name, []) for name in VAL_NAMES),
        ("train/ant val/ant test/ant", "train", "val", ["test/"]),
        ("train/ant train/bee", "train", None, [f"{name}/" for name in VAL_NAMES]),
        ("ant bee", "", None, ["--val-dir"]),
        # Classes that are called train and test, with folders in them or without.
        ("bus train test", "", None, ["--val-dir"]),
        ("bus/red train/steam train/diesel test", "", None, ["--val-dir"]),
    ],
)
def test_training_and_validation_images_are_found_by_name(folders, train, val, notes, tmp_path):
    splits = find_splits(make(tmp_path, *folders.split()))
    assert splits.train == tmp_path / train
    assert splits.val == (val and tmp_path / val)
    assert all(note in splits.note for note in notes)
    assert bool(splits.note) == bool(notes)


def test_invalid_class_folders_do_not_hide_train_and_a_named_validation_folder_wins(tmp_path):
    root, mine = tmp_path / "set", make(tmp_path / "mine", "ant")
    make(root, "train/ant", "annotations", ".git/objects")
    (root / "annotations" / "all.xml").touch()
    assert find_splits(root).train == root / "train"
    make(root, "val/ant")
    assert find_splits(root, val=mine).val == mine


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "no such folder"),
        ("file", "a file, expected a folder"),
        ("empty", "no class folders"),
        ("judged", "found val/ but no train/"),
        ("s3://bucket/train-cache", "is a URL; this command reads local folders"),
        ("https://host/cache", "is a URL; this command reads local folders"),
    ],
)
def test_unusable_folder_or_one_class_is_rejected_with_its_reason(place, said, tmp_path):
    make(tmp_path, "empty", "judged/val/ant", "judged/val/bee")
    (tmp_path / "file").touch()
    with pytest.raises(DatasetError, match=said):
        find_splits(Path(place) if "://" in place else tmp_path / place)

    with pytest.raises(DatasetError, match=r"one class only \(class0\)"):
        TrainData.find(write_tiny_set(tmp_path / "one", classes=1), None)


def test_labels_of_a_validation_set_without_some_class_read_as_the_training_sets():
    assert label_map(["ant", "bee", "wasp"], ["ant", "bee", "wasp"]) is None
    assert label_map(["ant", "bee", "wasp"], ["ant", "wasp"]) == [0, 2]
    with pytest.raises(DatasetError, match="'moth'"):
        label_map(["ant", "bee"], ["ant", "moth"])
