"""Identities of image sources, and labels of arrays."""

import numpy as np
import pytest

import feedline
from feedline import EvalCrop, ImageArray, ImageFolder, TrainCrop
from feedline.images.crops import without_addresses
from feedline.order.batch_spec import Field
from slow import slow


def test_repr_of_transform_covers_everything_that_affects_pixels(jpeg_folder):
    folder = ImageFolder(jpeg_folder)

    class Own:
        def place(self, height, width, item):
            return TrainCrop().place(height, width, item)

    root = folder.root
    kinds = [
        *(folder, folder.with_transform(EvalCrop()), folder.with_transform(TrainCrop(flip=0))),
        *(ImageFolder(root, **o) for o in ({"decode": "scaled"}, {"exif": 1})),
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
    **{f"classes, {dtype}": np.array([0, 2, 1] * 2, dtype) for dtype in ("u1", "i2", "u8", ">i4")},
}


@pytest.mark.parametrize(
    ("case", "workers"),
    [
        *((case, 0) for case in LABELS),
        ("every other", 2),
        *slow(*((case, 2) for case in sorted(LABELS.keys() - {"every other"}))),
    ],
)
def test_labels_keep_their_shape_and_dtype_and_class_numbers_become_int64(tmp_path, case, workers):
    images = np.random.default_rng(0).integers(0, 256, (6, 30, 30, 3), np.uint8)
    labels = LABELS[case]
    dtype = np.dtype("int64" if case.startswith("classes") else labels.dtype.newbyteorder("="))
    np.save(tmp_path / "labels.npy", labels)
    for given in (labels, tmp_path / "labels.npy"):
        data = ImageArray(images, given)
        assert data.fields(24)[1] == Field("label", dtype.name, labels.shape[1:])
        with feedline.DataLoader(
            data, 4, image_size=24, num_workers=workers, shuffle=False
        ) as all_:
            got = np.concatenate([labels.numpy().copy() for _, labels in all_])
        assert got.dtype == dtype
        assert np.array_equal(got, labels)
