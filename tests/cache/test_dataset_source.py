"""Caches of map-style datasets, and samples that cannot go into one."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import CLASSES, Samples, assert_cached, pictures
from PIL import Image

from feedline import ImageFolder
from feedline.cache.build import build_cache
from feedline.cache.source import open_source
from feedline.errors import DatasetError, ImageError
from feedline.order.batch_spec import Field
from image_inputs import encoded
from torchvision_folder import write_images


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1"])
def test_pictures_of_any_mode_become_rgb(mode):
    picture = pictures()[0].convert(mode)
    read = open_source(Samples([(picture, 0)])).read(0)
    assert np.array_equal(read, np.asarray(picture.convert("RGB")))
    if mode == "P":  # with transparency it is read without a warning
        transparency = bytes(range(256))
        kept = Image.open(io.BytesIO(encoded(picture, "PNG", transparency=transparency)))
        assert np.array_equal(open_source(Samples([(kept, 0)])).read(0), read)
        assert "transparency" in kept.info


def test_grey_images_get_three_equal_channels():
    grey = np.eye(9, 8, dtype=np.uint8)
    source = open_source(Samples([(grey, 0), (torch.from_numpy(grey)[None], 0)]))
    for sample in range(2):
        assert np.array_equal(source.read(sample), np.repeat(grey[:, :, None], 3, axis=2))


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        (np.arange(3, dtype=np.uint8), Field("label", "int64", ())),
        ([0.5, 1.5, 2.5], Field("label", "float64", ())),
        (torch.arange(3) / 2, Field("label", "float32", ())),
        ([True, False, True], Field("label", "bool", ())),
        (torch.arange(6).reshape(3, 2) % 2 == 0, Field("label", "bool", (2,))),
        ([[0, 1], [2, 3], [4, 5]], Field("label", "int64", (2,))),
    ],
)
def test_labels_keep_their_numbers_shape_and_dtype(tmp_path, labels, field):
    dataset = Samples([(picture, labels[n]) for n, picture in enumerate(pictures()[:3])])
    assert open_source(dataset).store.label_field == field
    build_cache(dataset, tmp_path / "cache", (16,), workers=1)
    found = ImageFolder(tmp_path / "cache").targets
    assert (found.dtype, found.shape[1:]) == (np.dtype(field.dtype), field.shape)
    assert found.tolist() == [np.asarray(label).tolist() for label in labels]


@pytest.mark.parametrize(
    ("entries", "names"), [(("image", "label"), CLASSES), (("img", "fine_label"), None)]
)
def test_samples_may_be_dicts(entries, names):
    dataset = Samples([dict(zip(entries, (pictures()[0], 7), strict=True)) | {"more": 1}], names)
    source = open_source(dataset)
    assert source.store.label(0) == 7
    assert np.array_equal(source.read(0), np.asarray(pictures()[0]))
    assert source.classes == names


TORN = Image.open(io.BytesIO(encoded(pictures()[0], "PNG")[:400]))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (ValueError("no such file"), "the dataset raised ValueError: no such file"),
        ((torch.zeros(3, 9, 8), 0), r"a Tensor, float32 of shape \(3, 9, 8\).*without its transf"),
        ((np.zeros((3, 9, 8), np.uint8), 0), r"uint8 of shape \(3, 9, 8\)"),
        ((np.zeros((9, 8, 3), np.int16), 0), "a PIL image.* a ndarray, int16"),
        ((torch.zeros(9, 8, 3, dtype=torch.uint8), 0), r"a Tensor, uint8 of shape \(9, 8, 3\)"),
        ((np.zeros((0, 8, 3), np.uint8), 0), r"no pixels: shape \(0, 8, 3\)"),
        ((pictures()[0], 0, "more"), r"\(image, label\).* a tuple of 3"),
        ({"image": pictures()[0]}, "got a dict of 'image'"),
        ((pictures()[0], 0.5), r"its label is float64 of shape \(\), but that of sample 0 is int6"),
        ((pictures()[0], "ants"), "its label is not supported: .*number the classes"),
        ((TORN, 0), "Pillow raised OSError: "),
    ],
)
def test_unusable_sample_is_named_in_error(tmp_path, bad, said):
    dataset = Samples([(pictures()[0], 3), bad, (pictures()[2], 4)])
    with pytest.raises(ImageError, match=said):
        open_source(dataset).read(1)
    with pytest.raises(ImageError, match="sample 1, 00000001, cannot be cached"):
        build_cache(dataset, tmp_path / "cache", (16,), workers=1)
    made = build_cache(dataset, tmp_path / "other", (16,), workers=1, on_error="skip")
    assert [number for number, *_ in made.skipped] == [1]
    assert ImageFolder(tmp_path / "other").targets.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([], "Samples has no samples"),
        (
            [RuntimeError("gone")],
            "sample 0 of the dataset .* the dataset raised RuntimeError: gone",
        ),
        ([(pictures()[0], {"boxes": []})], "its label is not supported: labels must be numbers"),
    ],
)
def test_dataset_without_first_label_is_rejected(samples, said):
    with pytest.raises(DatasetError, match=said):
        open_source(Samples(samples))


def test_build_reads_each_sample_once(tmp_path):
    class Counted(Samples):
        def __getitem__(self, at):
            with open(tmp_path / "asked", "a") as file:
                file.write(f"{at}\n")
            return super().__getitem__(at)

    source = open_source(Counted([(picture, 0) for picture in pictures()]))
    (tmp_path / "asked").unlink()
    for sample in range(1, 4):
        source.read(sample)
        source.store.label(sample)
    assert (tmp_path / "asked").read_text() == "1\n2\n3\n"


def test_a_folder_of_torchvision_keeps_its_names_and_labels(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    root = write_images(tmp_path / "photos")
    dataset = datasets.ImageFolder(root)
    build_cache(dataset, tmp_path / "cache", (16,), raw=True, workers=2)
    names = [Path(path).relative_to(root).as_posix() for path, _ in dataset.samples]
    originals = [picture for picture, _ in dataset]
    assert_cached(tmp_path / "cache", originals, dataset.targets, names, ["cats", "dogs"])


def test_modified_torchvision_folder_is_used_unchanged(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    root = write_images(tmp_path / "photos")
    turned = datasets.ImageFolder(root, target_transform=lambda label: 5 * label)
    assert [open_source(turned).store.label(sample) for sample in (0, 6)] == [0, 5]
    repeated = datasets.ImageFolder(root)
    repeated.samples = repeated.imgs = repeated.samples[:2] * 2
    source = open_source(repeated)
    assert [source.store.key(sample) for sample in range(4)] == [f"{n:08d}" for n in range(4)]
    plain = open_source(datasets.ImageFolder(root))
    shutil.rmtree(root)
    labels = [plain.store.label(sample) for sample in (0, 6)]  # without a look at the images
    assert labels == [0, 1]
