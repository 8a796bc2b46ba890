"""Decoded images in one array: in memory, or mapped from a file."""

import pickle

import numpy as np
import pytest

from feedline import EvalCrop, ImageArray
from feedline.errors import DatasetError, UsageError


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (20, 48, 40, 3), np.uint8)


@pytest.fixture
def labels():
    return np.arange(20) % 3


@pytest.fixture
def files(tmp_path, images, labels):
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    return tmp_path / "images.npy", tmp_path / "labels.npy"


def test_a_file_is_mapped_and_travels_as_its_path(files, images):
    data = ImageArray(*files)
    body = pickle.dumps(data)
    assert len(body) < images.nbytes // 10
    other = pickle.loads(body)
    assert np.array_equal(other.images, images)
    other.images[0] = 0  # copy-on-write: neither the file nor the others see it
    assert np.array_equal(np.load(files[0]), images)
    np.save(files[0], images[:7])
    with pytest.raises(DatasetError, match="overwritten"):
        pickle.loads(body)


def flipped(images, sample):
    changed = images.copy()
    changed[sample, 5, 5, 0] ^= 1
    return changed


def test_fingerprint_depends_on_pixels_labels_shapes_and_dtypes(images, labels, files):
    expected = ImageArray(images, labels).fingerprint()
    assert ImageArray(*files).fingerprint() == expected
    assert ImageArray(images, labels, EvalCrop()).fingerprint() == expected
    many, zeros = np.tile(images, (10, 1, 1, 1)), np.zeros(20, np.float32)
    others = [
        (images, labels),
        *((flipped(images, sample), labels) for sample in (0, 3, 19)),
        (many, np.zeros(200, int)),  # of which not all are read
        *((flipped(many, sample), np.zeros(200, int)) for sample in (0, 199)),
        (images[:10], labels[:10]),
        *((images.astype(dtype), labels) for dtype in (np.int16, np.uint16)),
        *((images, each) for each in (labels[::-1], zeros, zeros + 1, np.zeros(20, int))),
        *((images, each) for each in (zeros.astype(np.float64), zeros.reshape(20, 1))),
    ]
    assert len({ImageArray(*each).fingerprint() for each in others}) == len(others)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda x: x.astype(np.float64), "float64"),
        (lambda x: x.transpose(0, 3, 1, 2), r"transpose\(0, 2, 3, 1\)"),
        (lambda x: x[..., 0], r"images\[\.\.\., None\]"),
        (lambda x: x.tolist(), "got list"),
    ],
    ids=["dtype", "channels first", "grey", "list"],
)
def test_unusable_images_are_rejected_with_hint(images, labels, bad, message):
    with pytest.raises(UsageError, match=message) as caught:
        ImageArray(bad(images), labels)
    assert caught.value.argument == "images"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1, 2], r"20 labels, one per image, .*got int64 of shape \(2,\)"),
        (np.zeros((4, 20)), r"along the first axis, got float64 of shape \(4, 20\)"),
        (7, r"got int64 of shape \(\)"),
        ([b"cat"] * 20, r"dtype that torch supports, got .S3 .*number the classes"),
        ([None] * 20, "image 0 has no label"),
        ([*range(19), None], "image 19 has no label"),
        ([[1], [2, 3]] * 10, "image 0 has .* image 1 has .*one type and length"),
        (np.zeros((20, 0)), r"shape \(20, 0\) are empty"),
        (np.zeros((20, 3), np.uint16), r"got uint16.*labels\.astype\(numpy\.int64\)"),
        (np.zeros(20, "M8[s]"), "dtype that torch supports, got datetime64"),
    ],
)
def test_mismatched_labels_are_rejected_with_hint(images, bad, message):
    with pytest.raises(UsageError, match=message):
        ImageArray(images, bad)


def test_single_numbers_with_gaps_warn_and_rows_do_not(images):
    rows = np.ones((20, 2), np.float32)
    rows[3, 1] = np.nan
    assert np.array_equal(ImageArray(images, rows).targets, rows, equal_nan=True)
    with pytest.warns(UserWarning, match="1 of 20 labels are NaN; image 3 "):
        ImageArray(images, rows[:, 1])


@pytest.mark.parametrize(
    ("bands", "height", "width"),
    [(6, 48, 48), (3, 64, 64), (3, 32, 32), (1, 28, 28), (200, 11, 11), (12, 40, 60), (48, 32, 32)],
)
def test_bands_before_rows_and_columns_are_rejected_with_the_cure(bands, height, width):
    images = np.zeros((2, bands, height, width), np.uint16)
    for wrong in (images, images.transpose(0, 1, 3, 2)):
        with pytest.raises(UsageError) as caught:
            ImageArray(wrong, [0, 1])
        assert caught.value.argument == "images"
        assert "transpose(0, 2, 3, 1)" in caught.value.hint
    right = images.transpose(0, 2, 3, 1)
    assert ImageArray(right, [0, 1]).images.shape == (2, height, width, bands)


@pytest.mark.parametrize(
    "shape",
    [
        *((48, 48, 6), (28, 28, 1), (32, 48, 4), (11, 11, 200), (9, 9, 9), (1, 1, 200)),
        *((1, 128, 9), (3, 3, 64), (64, 4, 4), (8, 500, 3), (100, 80, 64)),
    ],
)
def test_images_with_channels_last_are_read(shape):
    images = np.zeros((2, *shape), np.float32)
    assert ImageArray(images, [0, 1]).images.shape == (2, *shape)


def test_empty_images_and_invalid_files_are_rejected_and_never_unpickled(tmp_path, images, labels):
    for empty in (images[:0], images[:, :0]):
        with pytest.raises(DatasetError, match="are empty"):
            ImageArray(empty, labels[: len(empty)])
    with pytest.raises(DatasetError, match="no such file"):
        ImageArray(tmp_path / "absent.npy", labels)
    (tmp_path / "text.npy").write_text("hello")
    with pytest.raises(DatasetError, match=r"text\.npy cannot be read"):
        ImageArray(tmp_path / "text.npy", labels)
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DatasetError, match=r"objects\.npy cannot be read"):
        ImageArray(tmp_path / "objects.npy", labels)
    (tmp_path / "short.npy").write_bytes((tmp_path / "objects.npy").read_bytes()[:20])
    with pytest.raises(DatasetError, match=r"short\.npy cannot be read"):
        ImageArray(tmp_path / "short.npy", labels)
