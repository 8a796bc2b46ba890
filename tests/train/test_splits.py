"""Finding training and validation images under a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_training import write_tiny_set

from feedline.errors import DatasetError
from feedline.sources.folder import VAL_NAMES
from feedline.train.data import TrainData, find_splits, label_map


def make(root: Path, *folders: str) -> Path:
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return root


@pytest.mark.parametrize("name", VAL_NAMES)
def test_validation_images_are_found_under_usual_names(tmp_path: Path, name: str) -> None:
    splits = find_splits(make(tmp_path, "train/ant", f"{name}/ant"))
    assert splits.train == tmp_path / "train"
    assert splits.val == tmp_path / name
    assert splits.note == ""


def test_missing_validation_images_list_searched_folders(
    tmp_path: Path,
) -> None:
    splits = find_splits(make(tmp_path, "train/ant", "train/bee"))
    assert splits.val is None
    assert all(f"{name}/" in splits.note for name in VAL_NAMES)


def test_val_is_preferred_to_test_and_reported(tmp_path: Path) -> None:
    splits = find_splits(make(tmp_path, "train/ant", "val/ant", "test/ant"))
    assert splits.val == tmp_path / "val"
    assert "test/" in splits.note


def test_a_folder_of_class_folders_is_trained_on_whole(tmp_path: Path) -> None:
    splits = find_splits(make(tmp_path, "ant", "bee"))
    assert (splits.train, splits.val) == (tmp_path, None)
    assert "--val-dir" in splits.note


def test_folder_named_train_without_subfolders_is_a_class(tmp_path: Path) -> None:
    splits = find_splits(make(tmp_path, "bus", "train", "test"))
    assert splits.train == tmp_path


def test_a_class_called_train_with_folders_in_it_is_a_class_among_others(tmp_path: Path) -> None:
    splits = find_splits(make(tmp_path, "bus/red", "train/steam", "train/diesel", "test"))
    assert splits.train == tmp_path


def test_invalid_class_folders_do_not_hide_train(tmp_path: Path) -> None:
    make(tmp_path, "train/ant", "annotations", ".git/objects")
    (tmp_path / "annotations" / "all.xml").touch()
    assert find_splits(tmp_path).train == tmp_path / "train"


def test_a_named_validation_folder_wins(tmp_path: Path) -> None:
    make(tmp_path, "set/train/ant", "set/val/ant", "mine/ant")
    splits = find_splits(tmp_path / "set", val=tmp_path / "mine")
    assert splits.val == tmp_path / "mine"


def test_missing_folder_file_and_empty_folder_raise_different_errors(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="no such folder"):
        find_splits(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="a file, expected a folder"):
        find_splits(tmp_path / "file")
    with pytest.raises(DatasetError, match="no class folders"):
        find_splits(tmp_path / "empty")


def test_url_differs_from_missing_folder() -> None:
    for url in ("s3://bucket/train-cache", "https://host/cache"):
        with pytest.raises(DatasetError, match="is a URL; this command reads local folders"):
            find_splits(Path(url))


def test_val_without_train_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="found val/ but no train/"):
        find_splits(make(tmp_path, "val/ant", "val/bee"))


def test_one_class_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"one class only \(class0\)"):
        TrainData.find(write_tiny_set(tmp_path, classes=1), None)


def test_labels_of_a_validation_set_without_some_class_read_as_the_training_sets() -> None:
    assert label_map(["ant", "bee", "wasp"], ["ant", "bee", "wasp"]) is None
    assert label_map(["ant", "bee", "wasp"], ["ant", "wasp"]) == [0, 2]
    with pytest.raises(DatasetError, match="'moth'"):
        label_map(["ant", "bee"], ["ant", "moth"])
