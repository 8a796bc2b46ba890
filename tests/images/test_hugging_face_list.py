"""Images of Hugging Face's datasets as a source of rows."""

import numpy as np
import pytest

from feedline import DataLoader, ImageList
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.order.batch_spec import Field
from row_of import row

datasets = pytest.importorskip("datasets")


@pytest.fixture
def dataset(jpeg_folder):
    """All images of the folder, with labels of several kinds."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cats", "dogs"]),
            "box": datasets.Sequence(datasets.Value("float32")),
            "name": datasets.Value("string"),
        }
    )
    columns = {
        "image": [str(file) for file in sorted(jpeg_folder.glob("*/*.jpg"))],
        "label": [0] * 6 + [1] * 6,
        "box": [[k, 0.5] for k in range(12)],
        "name": ["b"] * 6 + ["a"] * 6,
    }
    return datasets.Dataset.from_dict(columns, features=features)


def test_chosen_rows_and_formats_do_not_matter(dataset, jpeg_folder):
    whole = ImageList.from_hf(dataset, root=jpeg_folder)
    dataset.set_transform(lambda batch: 1 / 0)
    some = ImageList.from_hf(dataset.select([7, 2]), root=jpeg_folder)
    assert some.targets.tolist() == [1, 0]
    assert np.array_equal(row(some, 0)[0], row(whole, 7)[0])
    assert some.fingerprint() != whole.fingerprint()
    assert ImageList.from_hf(dataset, root=jpeg_folder).fingerprint() == whole.fingerprint()


def test_labels_of_every_kind(dataset):
    boxes = ImageList.from_hf(dataset, label="box")
    assert boxes.fields(8)[1] == Field("label", "float32", (2,))
    assert ImageList.from_hf(dataset, classes=np.array(["cats", "dogs"])).classes == [
        "cats",
        "dogs",
    ]
    names = ImageList.from_hf(dataset, label="name")
    assert (names.classes, names.targets.tolist()) == (["a", "b"], [1] * 6 + [0] * 6)


def test_unlabelled_samples_are_removed_or_kept_as_numbers(dataset):
    labels = datasets.ClassLabel(names=["cats", "dogs"])
    numbers = [-1, *[0, 1] * 5, -1]
    unlabelled = dataset.remove_columns("label").add_column("label", numbers)
    unlabelled = unlabelled.cast_column("label", labels)
    with pytest.raises(UsageError, match="row 0 has the label -1") as error:
        ImageList.from_hf(unlabelled)
    assert "filter(" in str(error.value)
    assert "cast_column(" in str(error.value)
    some = ImageList.from_hf(unlabelled.filter(lambda row: row["label"] >= 0))
    assert (some.classes, some.targets.tolist()) == (["cats", "dogs"], numbers[1:-1])
    kept = ImageList.from_hf(unlabelled.cast_column("label", datasets.Value("int64")))
    assert (kept.classes, kept.targets.tolist()) == ([], numbers)


def test_unusable_split_is_rejected(dataset, tmp_path):
    refused = [
        ([1], {}, "got list"),
        (datasets.DatasetDict({"train": dataset}), {}, "got a DatasetDict of 'train'"),
        (dataset.to_iterable_dataset(), {}, "(?s)got IterableDataset.*without streaming"),
        (dataset, {"image": "img"}, "no column 'img'"),
        (dataset, {"image": ["image"]}, "no column \\['image'\\]"),
        (dataset, {"classes": ["dogs", "cats"]}, "classes .'dogs', 'cats'. differ from .*'label'"),
        (dataset, {"label": "labl"}, "no column 'labl'; nearest: 'label'"),
        (dataset, {"image": "label"}, r"(?s)need the feature Image.*dataset\.cast_column"),
        (dataset.map(lambda r: {"label": -1}), {}, "row 0 has the label -1, but there are 2 class"),
    ]
    for given, options, said in refused:
        with pytest.raises(UsageError, match=said):
            ImageList.from_hf(given, **options)
    with pytest.raises(DatasetError, match="has no rows"):
        ImageList.from_hf(dataset.select([]))
    data = ImageList.from_hf(dataset)
    with (
        pytest.raises(UsageError, match="remove cache="),
        DataLoader(data, 2, image_size=16, cache=tmp_path / "cache") as loader,
    ):
        next(iter(loader))


def of_cells(*cells):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    columns = {"image": cells, "label": list(range(len(cells)))}
    return datasets.Dataset.from_dict(columns, features=features)


def paths_only(*paths):
    return of_cells(*({"bytes": None, "path": path} for path in paths))


def test_images_that_cannot_be_read_are_named(tmp_path):
    cells = {
        "No such file": {"bytes": None, "path": str(tmp_path / "a.jpg")},
        "does not exist on this machine": {"bytes": None, "path": "hf://datasets/x/a.jpg"},
        "cannot be loaded": {"bytes": b"no image", "path": "a.jpg"},
        "has no image": None,
        "no file can have its name": {"bytes": None, "path": "a\0b.jpg"},
    }
    data = ImageList.from_hf(of_cells(*cells.values()), root=tmp_path)
    for sample, text in enumerate(cells):
        with pytest.raises(ImageError, match=f"row {sample}.*{text}"):
            row(data, sample)


def test_a_path_in_a_row_is_read_only_below_the_stated_root(jpeg_folder, tmp_path):
    root = tmp_path / "images"
    (root / "more").mkdir(parents=True)
    for file in (root / "a.jpg", root / "more/b.jpg", tmp_path / "outside.jpg"):
        file.write_bytes((jpeg_folder / "cats/0.jpg").read_bytes())
    inside = paths_only(str(root / "a.jpg"), "more/b.jpg", str(root / "more/../a.jpg"))
    data = ImageList.from_hf(inside, root=root)
    for sample in range(3):
        row(data, sample)
    outside = [str(tmp_path / "outside.jpg"), "../outside.jpg", str(root / "../outside.jpg")]
    try:
        (root / "link.jpg").symlink_to(tmp_path / "outside.jpg")
        outside.append("link.jpg")
    except OSError:  # Windows without the right to make links
        pass
    data = ImageList.from_hf(paths_only(*outside), root=root)
    for sample in range(len(outside)):
        with pytest.raises(ImageError, match=f"row {sample} .*is not below root="):
            row(data, sample)
    with pytest.raises(ImageError, match=r"row 0 .*a\.jpg.*not the bytes") as caught:
        row(ImageList.from_hf(inside), 0)
    assert "root=" in caught.value.advice
    with pytest.raises(UsageError, match="must be a local folder"):
        ImageList.from_hf(inside, root="s3://bucket/images")
