"""Caches in a loader, and of a folder: levels by phase, equal crops, each file's own copies."""

import json
import os
import pickle
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder as TorchvisionFolder

from caches import FORMATS, photo
from feedline import DataLoader, EvalCrop, ImageArray, ImageFolder, TrainCrop, views
from feedline.cache.build import build_cache
from feedline.errors import ImageError, UsageError
from feedline.images.compile.compile_dataset import compile_dataset
from feedline.order.batch_spec import Item
from feedline.sources.remote_cache import open_cache
from row_of import row
from slow import slow

pytest.importorskip("lmdb")
TRAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(32),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    ]
)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("transform", [TrainCrop((0.3, 1.0)), EvalCrop(0.9)])
def test_same_seed_shows_same_region_of_every_level(photos, built, format, raw, transform):
    source = ImageFolder(photos, transform)
    cache = ImageFolder(built(format, raw), transform)
    for size in (16, 40):
        for sample in range(0, 24, 5):
            wanted, found = (row(each, sample, size, 7 * sample) for each in (source, cache))
            assert found[1] == wanted[1]
            assert np.abs(found[0].astype(int) - wanted[0]).mean() < (2.5 if raw else 5)
            other = row(source, sample, size, 7 * sample + 1)[0]
            if isinstance(transform, TrainCrop):
                assert np.abs(other.astype(int) - wanted[0]).mean() > 5


def test_each_phase_reads_smallest_sufficient_level(built):
    data = ImageFolder(built())
    with DataLoader(data, 8, schedule="16x1,24x1,32x1,48x1", num_workers=1) as loader:
        assert (
            "24 px JPEG q95 for 16 px, 24 px JPEG q95 for 24 px, 48 px JPEG q95 for 32 px, "
            "48 px JPEG q95 for 48 px"
        ) in loader.explain()
        for size in (16, 24, 32, 48):
            assert {batch[0].shape for batch in loader} == {(8, 3, size, size)}
    # To test, the whole image is wanted larger than the part of it that is shown.
    tested = DataLoader(data.with_transform(EvalCrop(0.875)), 8, image_size=24)
    assert "48 px JPEG q95 for 24 px" in tested.explain()
    tested.close()


def test_too_small_level_is_used_only_on_request(built):
    with pytest.raises(UsageError, match=r"(?s)56 px .*24, 48 px.*add-size.*enlarge"):
        DataLoader(ImageFolder(built()), 8, schedule="24x1,56x1")
    with DataLoader(ImageFolder(built(), enlarge=True), 8, image_size=56) as loader:
        assert "48 px JPEG q95 for 56 px" in loader.explain()
        assert next(iter(loader))[0].shape == (8, 3, 56, 56)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("start_method", ["fork", "forkserver", *slow("spawn")])
def test_batches_do_not_depend_on_start_method(built, format, start_method):
    def batches(**options):
        data = ImageFolder(built(format))
        row(data, 0, 16, 0)  # opened in this process, too
        with DataLoader(data, 8, seed=1, shuffle=True, image_size=32, **options) as loader:
            return [batch[0].clone() for batch in loader]

    alone = batches(num_workers=0)
    for one, other in zip(alone, batches(num_workers=2, start_method=start_method), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_descriptors_and_files_do_not_grow(built, format, raw):
    data = ImageFolder(built(format, raw))

    def epoch():
        for sample in range(len(data)):
            row(data, sample, 40, sample)
        return psutil.Process().num_fds()

    first = epoch()
    assert max(epoch() for _ in range(3)) <= first
    copies = [pickle.loads(pickle.dumps(data)) for _ in range(3)]
    assert len(pickle.dumps(data)) < 4000
    for copy in copies:
        assert np.array_equal(row(copy, 3, 40, 3)[0], row(data, 3, 40, 3)[0])


def test_pixels_outlive_the_dataset(built):
    for format in FORMATS:
        data = ImageFolder(built(format, True))
        pixels = data.store.read(3, 48)
        wanted = np.array(pixels)
        data.close()
        del data
        assert np.array_equal(pixels, wanted)


def test_state_resumes_over_levels_and_reports_other_pixels(photos, built):
    options = {"schedule": "24x1,48x1", "num_workers": 0}
    with DataLoader(ImageFolder(built()), 7, **options) as loader:
        rows = (batch[0].clone() for _ in range(2) for batch in loader)
        _ = [next(rows) for _ in range(3)]
        state = json.loads(json.dumps(loader.state_dict()))
        wanted = list(rows)
    with DataLoader(ImageFolder(built()), 7, **options) as loader:
        loader.load_state_dict(state)
        rest = [batch[0].clone() for _ in range(2) for batch in loader]
    assert len(rest) == len(wanted) > 0
    assert all(map(torch.equal, rest, wanted))
    with DataLoader(ImageFolder(photos), 7, **options) as loader:
        state = loader.state_dict()
    with (
        DataLoader(ImageFolder(photos), 7, cache=built("lmdb"), **options) as loader,
        pytest.warns(RuntimeWarning, match=r"made in another way.*24 px JPEG q95"),
    ):
        loader.load_state_dict(state)


# torchvision's pipelines, and a cache of the folder


@pytest.mark.parametrize("collate", [None, list])
def test_a_torchvision_folder_reads_a_cache(photos, built, collate):
    folder = TorchvisionFolder(str(photos), TRAIN)
    options = {"seed": 3, "num_workers": 1, "collate_fn": collate}
    with (
        DataLoader(folder, 6, **options) as plain,
        DataLoader(folder, 6, cache=built(), **options) as cached,
    ):
        assert "copies      48 px JPEG q95 for 32 px" in cached.explain()
        assert "copies" not in plain.explain()
        for wanted, found in zip(plain, cached, strict=True):
            if collate is None:
                assert torch.equal(wanted[1], found[1])
                assert 0 < (wanted[0] - found[0]).abs().mean() < 0.15
            else:
                assert [label for _, label in wanted] == [label for _, label in found]


def test_a_cache_serves_subsets(photos, built):
    folder = TorchvisionFolder(str(photos), TRAIN)
    chosen = [23, 1, 1, 14]
    with DataLoader(Subset(folder, chosen), 4, seed=0, shuffle=False, cache=built()) as loader:
        assert next(iter(loader))[1].tolist() == [folder.targets[k] for k in chosen]


def test_dataset_without_copies_is_rejected(photos, built, tmp_path):
    more = tmp_path / "more"
    shutil.copytree(photos, more)
    Image.new("RGB", (50, 50)).save(more / "a" / "extra.jpg")
    for data in (ImageFolder(more), TorchvisionFolder(str(more), TRAIN)):
        with pytest.raises(UsageError, match=r"no copies of 1 of 25 images, 'a/extra\.jpg'"):
            DataLoader(data, 4, image_size=24, cache=built()).explain()
    with pytest.raises(UsageError, match="list is not torchvision's ImageFolder"):
        DataLoader([1, 2, 3], 2, cache=built()).explain()
    array = ImageArray(np.zeros((3, 9, 9, 3), np.uint8), [0, 1, 2])
    with pytest.raises(UsageError, match=r"image files are needed.* of ImageArray"):
        DataLoader(array, 2, image_size=8, cache=built())
    with pytest.raises(UsageError, match="inside its source"):
        DataLoader(ImageFolder(photos), 2, image_size=8, cache=photos)
    with pytest.raises(UsageError, match=r"(?s)exif True .*exif=False"):
        DataLoader(ImageFolder(photos, exif=True), 2, image_size=8, cache=built())


STEPS = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor()])
WHOLE = TrainCrop((1.0, 1.0), flip=0.0)


def cache_of(source, root):
    build_cache(source, root, (24,), raw=True, workers=0)


def copies(source, root):
    """The pixels that each file gets of a cache, by the file's path."""
    store = source.cached(open_cache(root)).store
    pixels = [np.asarray(store.read(sample, 24)).tobytes() for sample in range(len(store))]
    return {store.name(sample): held for sample, held in enumerate(pixels)}


@pytest.mark.parametrize(
    "numbers",
    [None, random.Random(0).sample(range(24), 24), range(3, 24, 2), [*range(24)] * 2],
    ids=["all", "shuffled", "some", "twice"],
)
def test_files_in_any_order_get_their_own_copies(photos, root, numbers):
    cache_of(photos, root)
    wanted = copies(ImageFolder(photos), root)
    assert len(set(wanted.values())) == 24
    dataset = TorchvisionFolder(str(photos), STEPS)
    if numbers is not None:
        dataset = Subset(dataset, numbers)
    found = copies(compile_dataset(dataset).pipeline, root)
    assert found == {name: wanted[name] for name in found}
    assert len(found) == len(set(numbers or range(24)))


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes are Linux's")
@pytest.mark.parametrize("dataset", ["feedline", "torchvision"])
def test_non_utf8_names_are_found(tmp_path, root, dataset):
    source = tmp_path / "photos"
    names = (b"a\xff/1.jpg", b"a\xff/\xc3\xa9\xe2.jpg", "\u00e9/2.jpg".encode())
    for number, name in enumerate(names):
        path = Path(os.fsdecode(os.fsencode(source) + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(path, number)
    cache_of(source, root)
    folder = ImageFolder(source, WHOLE)
    if dataset == "torchvision":
        folder = compile_dataset(TorchvisionFolder(str(source), STEPS)).pipeline
    found = folder.cached(open_cache(root)).store
    cache = ImageFolder(root)
    for sample in range(3):
        assert np.array_equal(found.read(sample, 24), cache.store.read(sample, 24))
        assert cache.name(sample).encode() in found.name(sample).encode()
    if dataset == "feedline":
        cached = folder.cached(open_cache(root))
        for sample in range(3):
            rows = [row(each, sample, 24, 0)[0] for each in (folder, cached)]
            assert np.abs(np.subtract(*rows, dtype=int)).mean() < 3


def test_concatenated_names_do_not_collide(tmp_path, root):
    source, other = tmp_path / "photos", tmp_path / "other"
    for path in (source / "c" / "x.jpg", source / "c" / "y.jpg", other / "c" / "x.jpgc" / "y.jpg"):
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(path, 0)
    cache_of(source, root)
    with pytest.raises(UsageError, match=r"no copies of 1 of 1 images, 'c/x\.jpgc/y\.jpg'"):
        ImageFolder(other).cached(open_cache(root))


def test_skipped_file_is_read_from_original(tmp_path):
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
        row(ImageFolder(source, exif=True).cached(open_cache(turned)), 1)


def test_views_use_copies(photos, root):
    cache_of(photos, root)
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
