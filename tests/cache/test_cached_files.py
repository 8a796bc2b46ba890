"""A cache of a folder: each file is matched with its copies, in any order and with any names."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder as TorchvisionFolder

from caches import photo
from feedline import ImageFolder, TrainCrop, views
from feedline.cache.build import build_cache
from feedline.errors import ImageError, UsageError
from feedline.images.compile.compile_dataset import compile_dataset
from feedline.order.batch_spec import Item
from feedline.sources.remote_cache import open_cache
from row_of import made

STEPS = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
WHOLE = TrainCrop((1.0, 1.0), flip=0.0)


def cache_of(source: Path, root: Path) -> Path:
    build_cache(source, root, (24,), raw=True, workers=0)
    return root


def copies(source: Any, root: Path) -> dict[str, bytes]:
    """The pixels that each file gets of a cache, by the file's path."""
    store = source.cached(open_cache(root)).store
    pixels = [np.asarray(store.read(sample, 24)).tobytes() for sample in range(len(store))]
    return {store.name(sample): held for sample, held in enumerate(pixels)}


@pytest.mark.parametrize("order", ["as it is", "shuffled", "some", "twice"])
def test_files_in_any_order_get_their_own_copies(photos: Path, tmp_path: Path, order: str) -> None:
    root = cache_of(photos, tmp_path / "cache")
    wanted = copies(ImageFolder(photos), root)
    assert len(set(wanted.values())) == 24
    numbers = list(range(24))
    if order == "shuffled":
        random.Random(0).shuffle(numbers)
    elif order == "some":
        numbers = numbers[3::2]
    elif order == "twice":
        numbers += numbers
    dataset: Any = TorchvisionFolder(str(photos), STEPS)
    if order != "as it is":
        dataset = Subset(dataset, numbers)
    found = copies(compile_dataset(dataset).pipeline, root)
    assert found == {name: wanted[name] for name in found}
    assert len(found) == len(set(numbers))


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes are Linux's")
@pytest.mark.parametrize("dataset", ["feedline", "torchvision"])
def test_non_utf8_names_are_found(tmp_path: Path, dataset: str) -> None:
    source = tmp_path / "photos"
    names = (b"a\xff/1.jpg", b"a\xff/\xc3\xa9\xe2.jpg", "\u00e9/2.jpg".encode())
    for number, name in enumerate(names):
        path = Path(os.fsdecode(os.fsencode(source) + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(path, number)
    root = cache_of(source, tmp_path / "cache")
    folder: Any = ImageFolder(source, WHOLE)
    if dataset == "torchvision":
        folder = compile_dataset(TorchvisionFolder(str(source), STEPS)).pipeline
    found = folder.cached(open_cache(root)).store
    cache = ImageFolder(root)
    for sample in range(3):
        assert np.array_equal(found.read(sample, 24), cache.store.read(sample, 24))
        assert cache.name(sample).encode() in found.name(sample).encode()
    if dataset == "feedline":
        for sample in range(3):
            rows = [
                made(each, 24, sample, 0)[0] for each in (folder, folder.cached(open_cache(root)))
            ]
            assert np.abs(np.subtract(*rows, dtype=int)).mean() < 3


def test_concatenated_names_do_not_collide(tmp_path: Path) -> None:
    source, other = tmp_path / "photos", tmp_path / "other"
    for path in (source / "c" / "x.jpg", source / "c" / "y.jpg", other / "c" / "x.jpgc" / "y.jpg"):
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(path, 0)
    root = cache_of(source, tmp_path / "cache")
    with pytest.raises(UsageError, match=r"no copies of 1 of 1 images, 'c/x\.jpgc/y\.jpg'"):
        ImageFolder(other).cached(open_cache(root))


def test_skipped_file_is_read_from_original(tmp_path: Path) -> None:
    source, root = tmp_path / "photos", tmp_path / "cache"
    (source / "c").mkdir(parents=True)
    for number in range(4):
        photo(source / "c" / f"{number}.jpg", number)
    # torchvision reads it, a build does not: Pillow fills missing data with grey.
    cut = source / "c" / "1.jpg"
    cut.write_bytes(cut.read_bytes()[:-200] + b"\xff\xd9")
    (source / "c" / "2.jpg").write_bytes(b"none")
    manifest = build_cache(source, root, (24,), raw=True, workers=0, on_error="skip")
    assert [number for number, _, _ in manifest.skipped] == [1, 2]
    files = compile_dataset(TorchvisionFolder(str(source), STEPS)).pipeline
    copies_of_them = files.cached(open_cache(root))
    item = Item(1, 16, 0, 1.0)
    assert torch.equal(files.sample(item)[0], copies_of_them.sample(item)[0])
    for each in (files, copies_of_them):
        with pytest.raises(ImageError, match=r"sample 2, .*2\.jpg, .* 4 bytes, starting"):
            each.sample(item._replace(sample=2))
    # The copy of a rotated file differs from the file.
    turned = tmp_path / "turned"
    build_cache(source, turned, (24,), raw=True, workers=0, on_error="skip", exif=True)
    with pytest.raises(ImageError, match=r"sample 1, .* was skipped in the cache"):
        made(ImageFolder(source, exif=True).cached(open_cache(turned)), 16, 1, 0)


def test_views_use_copies(photos: Path, tmp_path: Path) -> None:
    root = cache_of(photos, tmp_path / "cache")
    large = transforms.Compose([transforms.RandomResizedCrop(16), transforms.PILToTensor()])
    small = transforms.Compose([transforms.RandomResizedCrop(8), transforms.PILToTensor()])
    folder = TorchvisionFolder(str(photos), views(large, small))
    originals = compile_dataset(folder).pipeline
    assert originals is not None
    cached = originals.cached(open_cache(root))
    for sample in range(24):
        item = Item(sample, 16, 7 * sample, 1.0)
        pairs = zip(cached.sample(item)[0], originals.sample(item)[0], strict=True)
        for (ours, theirs), side in zip(pairs, (16, 8), strict=True):
            assert ours.shape == theirs.shape == (3, side, side)
            # The finest of these waves differ by 16, other regions of an image by 70.
            assert (ours.float() - theirs.float()).abs().mean() < 20
