"""HEIC files: the pixels of pillow-heif from folders, lists, archives and caches."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as T

import feedline
from feedline.errors import ImageError

pillow_heif = pytest.importorskip("pillow_heif")

SIZE = 48
TRANSFORM = T.Compose([T.CenterCrop(SIZE), T.PILToTensor()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("heic")
    ramp = np.add.outer(np.arange(80), np.arange(96))
    for k, label in enumerate("aabb"):
        (root / label).mkdir(exist_ok=True)
        pixels = np.stack([(ramp + 40 * k) % 256, ramp * (k + 1) % 256, ramp // 2], -1)
        image = Image.fromarray(pixels.astype(np.uint8))
        pillow_heif.from_pillow(image).save(root / label / f"{k}.heic")
    return root


def load(data: object, **options: object) -> torch.Tensor:
    with feedline.DataLoader(data, 4, **options) as loader:  # type: ignore[arg-type]
        ((images, _),) = loader
    return images


def test_pixels_match_pillow_in_folder_list_and_archive(folder: Path, tmp_path: Path) -> None:
    paths = sorted(folder.glob("*/*.heic"))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for path in paths:
            archive.write(path, path.relative_to(folder))
    expected = torch.stack([TRANSFORM(pillow_heif.open_heif(path).to_pillow()) for path in paths])
    for data in (
        feedline.ImageFolder(folder, TRANSFORM, extensions=(".heic",)),
        feedline.ImageFolder(tmp_path / "all.zip", TRANSFORM, extensions=(".heic",)),
        feedline.ImageList(paths, [0, 0, 1, 1], TRANSFORM),
    ):
        assert torch.equal(load(data, num_workers=1), expected)


def test_a_cache_of_raw_copies_has_the_pixels_of_the_originals(
    folder: Path, tmp_path: Path
) -> None:
    data = feedline.ImageFolder(folder, extensions=(".heic",))
    feedline.build_cache(data, tmp_path / "cache", [80], raw=True)  # the originals' shorter side
    crop = feedline.EvalCrop()
    expected = load(feedline.ImageFolder(folder, crop, extensions=(".heic",)), image_size=SIZE)
    assert torch.equal(
        load(feedline.ImageFolder(tmp_path / "cache", crop), image_size=SIZE), expected
    )


def test_truncated_file_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.heic").write_bytes((folder / "a" / "0.heic").read_bytes()[:400])
    data = feedline.ImageFolder(tmp_path, extensions=(".heic",))
    with pytest.raises(ImageError, match=r"broken\.heic"):
        load(data, image_size=SIZE)
