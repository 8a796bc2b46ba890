"""Hugging Face datasets: the dataset itself, and its Parquet and Arrow files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pictures import CLASSES, LABELS, assert_cached, pictures

from feedline.cache.build import build_cache
from feedline.cache.source import open_source
from feedline.errors import DatasetError, UsageError

datasets = pytest.importorskip("datasets")


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    """All pictures with their labels, as datasets keeps them in memory."""
    paths = []
    for number, picture in enumerate(pictures()):
        paths.append(str(tmp_path / f"{number}.png"))
        picture.save(paths[-1])
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
    )
    return datasets.Dataset.from_dict({"image": paths, "label": LABELS}, features=features)


def test_a_loaded_dataset_becomes_a_cache(dataset: Any, tmp_path: Path) -> None:
    build_cache(dataset, tmp_path / "cache", (16,), raw=True, workers=2)
    names = [f"{number:08d}" for number in range(len(LABELS))]
    assert_cached(tmp_path / "cache", pictures(), LABELS, names, CLASSES)


def test_parquet_files_of_hugging_face_become_a_cache(dataset: Any, tmp_path: Path) -> None:
    dataset.save_to_disk(tmp_path / "saved")  # which takes the images in
    file = tmp_path / "set" / "data" / "train-00000-of-00001.parquet"
    datasets.load_from_disk(tmp_path / "saved").to_parquet(file, batch_size=3)
    build_cache(tmp_path / "set", tmp_path / "cache", (16,), raw=True, workers=2)
    names = [f"{number}.png" for number in range(len(LABELS))]
    assert_cached(tmp_path / "cache", pictures(), LABELS, names, CLASSES)


def test_parquet_files_of_paths_alone_are_rejected(dataset: Any, tmp_path: Path) -> None:
    dataset.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=r"has a path, '.*/7\.png', but not the bytes"):
        build_cache(tmp_path / "a.parquet", tmp_path / "cache", (16,), workers=1)


def test_arrow_files_of_hugging_face_are_rejected_but_can_be_loaded(
    dataset: Any, tmp_path: Path
) -> None:
    dataset.save_to_disk(tmp_path / "saved")
    with pytest.raises(DatasetError, match=r"datasets\.load_from_disk"):
        open_source(tmp_path / "saved")
    assert len(open_source(datasets.load_from_disk(tmp_path / "saved"))) == len(LABELS)
    with pytest.raises(UsageError, match=r"(?s)a DatasetDict of 'train'.*pass one"):
        open_source(datasets.DatasetDict({"train": dataset}))
