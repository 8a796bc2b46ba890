"""Paths and URLs given by the user are opened as the right source, or rejected."""

from __future__ import annotations

import io
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from pictures import Samples, assert_cached
from PIL import Image
from torch.utils.data import TensorDataset

from feedline import ImageFolder
from feedline.cache.build import build_cache
from feedline.cache.source import open_source
from feedline.errors import DatasetError, UsageError
from torchvision_folder import write_images


def test_invalid_source_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="got int"):
        open_source(3)
    with pytest.raises(UsageError, match=r"(?s)a dict of 'train', 'test'.*pass one"):
        open_source({"train": Samples([]), "test": Samples([])})
    with pytest.raises(DatasetError, match=r"absent.*No such file|absent"):
        open_source(tmp_path / "absent")
    tensors = TensorDataset(torch.zeros(2, 3, 9, 8))
    with pytest.raises(DatasetError, match=r"\(image, label\).*a tuple of 1"):
        open_source(tensors)


def test_feedline_folder_is_opened_as_its_files(tmp_path: Path) -> None:
    root = write_images(tmp_path / "photos")
    chosen = ImageFolder(root, extensions=[".png"])
    source = open_source(chosen)
    assert source.kind == "folder"
    build_cache(chosen, tmp_path / "cache", (16,), raw=True, workers=1)
    names = ["cats/b.png", "dogs/palette.png", "dogs/see-through.png", "dogs/small.png"]
    originals = [Image.open(io.BytesIO((root / name).read_bytes())) for name in names]
    assert_cached(tmp_path / "cache", originals, [0, 1, 1, 1], names, ["cats", "dogs"])
    with pytest.raises(UsageError, match="is a cache"):
        open_source(ImageFolder(tmp_path / "cache"))
    with pytest.raises(UsageError, match="is a cache"):
        open_source(tmp_path / "cache")


def test_class_folders_are_preferred_to_archive_next_to_them(tmp_path: Path) -> None:
    root = write_images(tmp_path / "photos")
    (root / "photos.tar.gz").write_bytes(b"")
    (root / "cover.png").write_bytes(b"")
    assert open_source(root).kind == "folder"
    assert open_source(str(root)).kind == "folder"


def test_files_of_several_kinds_are_rejected(tmp_path: Path) -> None:
    for name in ("a.tar", "b.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(DatasetError, match=r"files of several kinds, .*a\.tar.*b\.parquet"):
        open_source(tmp_path / "*")


def split(root: Path) -> Path:
    for name in ("train", "val"):
        write_images(root / name)
    return root


def test_train_and_val_are_not_classes(tmp_path: Path) -> None:
    root = split(tmp_path / "data")
    for named in (root, root.as_uri()):
        with pytest.raises(UsageError, match=r"/data/train' or .*/data/val'"):
            open_source(named)
    for open_it in (ImageFolder, lambda where: ImageFolder(zipped(where))):
        with pytest.warns(UserWarning, match=r"/train' or .*/val'"):
            both = open_it(root)
        assert both.classes == ["train", "val"]


def zipped(root: Path) -> str:
    return shutil.make_archive(str(root), "zip", root)


def test_shards_of_train_and_val_are_not_mixed(tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "000.tar").touch()
    with pytest.raises(UsageError, match=r"/train' or .*/val'"):
        open_source(tmp_path)


def test_classes_named_like_splits_are_classes(tmp_path: Path) -> None:
    root = write_images(tmp_path / "photos")
    for old, new in zip(
        sorted(each for each in root.iterdir() if each.is_dir()), ("train", "val"), strict=False
    ):
        old.rename(root / new)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {"train", "val"} <= set(ImageFolder(root).classes)
    assert {"train", "val"} <= set(open_source(root).classes)
