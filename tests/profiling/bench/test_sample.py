"""Images drawn from a folder, as a source."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from feedline import DataLoader
from feedline.errors import ImageError
from feedline.images.folder import ImageFolder, sample_folder
from feedline.order.batch_spec import Item
from feedline.profile.bench.loaders import ImageSample


def test_sample_draws_each_image_once_with_its_label(folder: ImageFolder) -> None:
    some = sample_folder(folder, seed=3)
    label = {folder.path(k): folder.targets[k] for k in range(len(folder))}
    assert sorted(map(some.path, range(len(some)))) == sorted(label)
    assert [label[some.path(k)] for k in range(len(some))] == some.targets.tolist()
    assert some.classes == folder.classes
    assert len(folder) == 20, "the folder itself is as it was"


def test_seed_determines_sample(folder: ImageFolder) -> None:
    def names(seed: int) -> list[str]:
        return [few.name(k) for few in [sample_folder(folder, seed, most=6)] for k in range(6)]

    assert names(1) == names(1)
    assert names(1) != names(2)
    assert len(sample_folder(folder, 1, most=6)) == 6
    assert len(sample_folder(folder, 1, most=600)) == 20


def test_sample_is_repeated_with_other_crops(folder: ImageFolder) -> None:
    sample = pickle.loads(pickle.dumps(ImageSample(sample_folder(folder, 0), [4, 2, 7])))
    assert len(sample) > 1_000_000
    assert [sample.name(k) for k in range(6)] == [sample.folder.name(k) for k in (4, 2, 7)] * 2

    image, label = np.zeros((32, 32, 3), np.uint8), np.zeros((), np.int64)
    expected = np.zeros_like(image)
    sample.load(Item(4, 32, 99, 1.0), (image, label))
    sample.folder.load(Item(2, 32, 99, 1.0), (expected, np.zeros((), np.int64)))
    assert (image == expected).all()
    assert label == sample.folder.targets[2]

    with DataLoader(sample, 3, image_size=32, shuffle=False, num_workers=0, seed=0) as loader:
        batches = iter(loader)
        first, again = next(batches)[0].numpy(), next(batches)[0].numpy()
    assert (first != again).any(axis=(1, 2, 3)).all()


def test_fingerprints_differ_between_samples(folder: ImageFolder) -> None:
    assert ImageSample(folder, [1, 2]).fingerprint() == ImageSample(folder, [1, 2]).fingerprint()
    assert ImageSample(folder, [1, 2]).fingerprint() != ImageSample(folder, [2, 1]).fingerprint()


def test_removed_file_is_named_in_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(b"")
    sample = ImageSample(ImageFolder(tmp_path), [0])
    (tmp_path / "a" / "x.jpg").unlink()
    row = np.zeros((8, 8, 3), np.uint8), np.zeros((), np.int64)
    with pytest.raises(ImageError, match=r"x\.jpg"):
        sample.load(Item(5, 8, 0, 1.0), row)
