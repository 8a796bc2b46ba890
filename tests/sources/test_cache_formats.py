"""A format of caches is one module: written, read, verified and repaired like the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedline import DataLoader, EvalCrop, ImageFolder, build_cache, repair_cache
from feedline.cache.damage import verify
from feedline.errors import DatasetError
from feedline.sources.cache_formats import cache_format
from joined_format import JoinedFormat


@pytest.fixture
def cache(jpeg_folder: Path, tmp_path: Path) -> Path:
    build_cache(jpeg_folder, tmp_path / "joined", sizes=[24], format="joined", workers=2)
    return tmp_path / "joined"


@pytest.mark.parametrize("workers", [0, 2])
def test_images_equal_those_of_another_format(
    cache: Path, jpeg_folder: Path, tmp_path: Path, workers: int
) -> None:
    build_cache(jpeg_folder, tmp_path / "tar", sizes=[24], workers=1)

    def images(root: Path) -> list[np.ndarray]:
        with DataLoader(
            ImageFolder(root, EvalCrop()), 4, image_size=16, shuffle=False, num_workers=workers
        ) as loader:
            return [images.numpy().copy() for images, _ in loader]

    for found, expected in zip(images(cache), images(tmp_path / "tar"), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_damage_is_found_and_repaired(cache: Path, jpeg_folder: Path) -> None:
    (path,) = (cache / "24").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\0" * 10 + whole[110:])
    assert len(verify(cache, workers=1).damaged) == 1
    path.write_bytes(whole[:-1])
    assert verify(cache, workers=1).files[0].file == str(path)
    repair_cache(cache, workers=1)
    assert path.read_bytes() == whole


def test_unknown_format_is_named_with_known_ones() -> None:
    assert isinstance(cache_format("joined"), JoinedFormat)
    with pytest.raises(DatasetError, match=r"'rar'.* webdataset, lmdb, folder"):
        cache_format("rar")
