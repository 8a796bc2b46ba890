"""Stores of images: a new one needs nothing but the protocol."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

import feedline
from feedline import EvalCrop, ImageArray, ImageFolder, TrainCrop
from feedline.errors import ImageError
from feedline.images.crops import without_addresses
from feedline.images.rows import RowPipeline
from feedline.order.batch_spec import Field
from feedline.sources.arrays import ArrayStore
from row_of import row
from slow import slow


class ZipStore:
    """Files of an archive labelled with float boxes: a user-defined store."""

    label_field = Field("label", "float32", (4,))

    def __init__(self, path, names):
        self.path, self.names, self.archive = path, names, None

    def __len__(self):
        return len(self.names)

    def open(self):
        self.archive = zipfile.ZipFile(self.path)

    def close(self):
        if self.archive is not None:
            self.archive.close()
        self.archive = None

    def read(self, sample, side):
        try:
            return self.archive.read(self.names[sample])
        except KeyError as error:
            raise ImageError(f"it is not in the archive: {error}") from error

    def label(self, sample):
        return (sample, 0, 1.5, 2)

    def name(self, sample):
        return f"{self.path}:{self.names[sample]}"

    def original_size(self, sample):
        return None

    def describe_resolution(self, side):
        return ""

    def describe_copies(self):
        return ""

    def fingerprint(self):
        return "-".join(self.names)


def encoded(number, kind):
    pixels = np.random.default_rng(number).integers(0, 256, (5, 6, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).resize((50 + number, 40), Image.Resampling.BICUBIC).save(data, kind)
    return data.getvalue()


@pytest.fixture
def folder(tmp_path):
    for number in range(6):
        path = tmp_path / "folder" / "ab"[number % 2] / f"{number}.img"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number, ("JPEG", "PNG")[number // 3]))
    return ImageFolder(tmp_path / "folder", extensions=[".img"])


@pytest.fixture
def archive(tmp_path, folder):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as made:
        for sample in range(6):
            made.write(folder.path(sample), str(sample))
    return ZipStore(str(tmp_path / "all.zip"), [*map(str, range(6)), "absent"])


@pytest.mark.parametrize("transform", [TrainCrop(), EvalCrop()])
def test_archive_rows_equal_those_of_folder(folder, archive, transform):
    data = RowPipeline(archive, transform)
    assert (len(data), data.fingerprint()) == (7, archive.fingerprint())
    assert data.name(1) == archive.name(1)
    data.open(0, 1)
    for sample in range(6):
        image, label = row(data, sample, 24)
        assert np.array_equal(image, row(folder.with_transform(transform), sample, 24)[0])
        assert label.tolist() == [sample, 0, 1.5, 2]
    with pytest.raises(
        ImageError, match=r"sample 6, .*all\.zip:absent, cannot be loaded: it is not"
    ):
        row(data, 6, 24)
    data.close()
    assert archive.archive is None
    assert np.array_equal(row(data, 5, 24)[0], image)  # it is opened again
    data.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_open_the_store(folder, archive, workers):
    archive.names.pop()
    data = RowPipeline(archive, TrainCrop())
    options = {"image_size": 24, "num_workers": workers, "shuffle": False, "seed": 1}
    with feedline.DataLoader(data, 3, **options) as loader:
        ours = [(images.clone(), labels.clone()) for images, labels in loader]
    with feedline.DataLoader(folder, 3, **options) as loader:
        theirs = [images.clone() for images, _ in loader]
    assert all(bool((a == b).all()) for (a, _), b in zip(ours, theirs, strict=True))
    assert [labels[:, 0].tolist() for _, labels in ours] == [[0, 1, 2], [3, 4, 5]]


def test_repr_of_transform_covers_everything_that_affects_pixels(folder):
    class Own:
        def place(self, height, width, item):
            return TrainCrop().place(height, width, item)

    root = folder.root
    kinds = [
        *(folder, folder.with_transform(EvalCrop()), folder.with_transform(TrainCrop(flip=0))),
        *(ImageFolder(root, extensions=[".img"], **o) for o in ({"decode": "scaled"}, {"exif": 1})),
    ]
    assert len({data.transform_identity() for data in kinds}) == len(kinds)
    own = folder.with_transform(Own())
    assert own.transform_identity() == folder.with_transform(Own()).transform_identity()
    assert [data.uses_strength for data in (*kinds[:2], own)] == [True, False, True]
    assert without_addresses(f"{object()!r}, 1") == "<object object>, 1"


LABELS = {
    "boxes": np.arange(24, dtype=np.float32).reshape(6, 4),
    "halves": np.arange(6, dtype=np.float16),
    "complex": np.arange(6) * (1 + 2j),
    "several classes": np.arange(18).reshape(6, 3) % 2 == 0,
    "masks": np.arange(6 * 5 * 4, dtype=np.uint8).reshape(6, 5, 4),
    "another byte order": np.arange(12, dtype=">f4").reshape(6, 2),
    "every other": np.arange(24, dtype=np.int16).reshape(6, 4)[:, ::2],
}


@pytest.mark.parametrize(
    ("case", "workers"),
    [
        *((case, 0) for case in LABELS),
        ("every other", 2),
        *slow(*((case, 2) for case in sorted(LABELS.keys() - {"every other"}))),
    ],
)
def test_labels_keep_their_shape_and_dtype(tmp_path, case, workers):
    images = np.random.default_rng(0).integers(0, 256, (6, 30, 30, 3), np.uint8)
    labels = LABELS[case]
    np.save(tmp_path / "labels.npy", labels)
    for given in (labels, tmp_path / "labels.npy"):
        data = ImageArray(images, given)
        assert data.fields(24)[1] == Field("label", labels.dtype.name, labels.shape[1:])
        with feedline.DataLoader(
            data, 4, image_size=24, num_workers=workers, shuffle=False
        ) as all_:
            got = np.concatenate([labels.numpy().copy() for _, labels in all_])
        assert got.dtype == labels.dtype.newbyteorder("=")
        assert np.array_equal(got, labels)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64, ">i4"])
def test_class_numbers_become_int64(dtype):
    store = ArrayStore(np.zeros((3, 2, 2, 3), np.uint8), np.array([0, 2, 1], dtype))
    assert store.label_field == Field("label", "int64", ())
    assert store.labels.tolist() == [0, 2, 1]
