"""Sources of caches: every kind becomes the same cache; others are rejected by name."""

import io
import json
import os
import pickle
import shutil
import sys
import tarfile
import warnings

import numpy as np
import pytest
import torch
from pictures import CLASSES, LABELS, Samples, assert_cached, pictures
from PIL import Image
from torch.utils.data import TensorDataset

from feedline import ImageFolder
from feedline.cache.build import build_cache
from feedline.cache.source import open_source
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources import rows as rows_module
from image_inputs import encoded
from tars import write_tar
from torchvision_folder import write_images

COUNT = len(LABELS)
NUMBERS = [f"{number:08d}" for number in range(COUNT)]
PATHS = [f"{number}.png" for number in range(COUNT)]


def metadata(classes):
    """Schema metadata as written by Hugging Face datasets."""
    feature = {"names": classes, "_type": "ClassLabel"}
    return {"huggingface": json.dumps({"info": {"features": {"label": feature}}})}


def array(values, kind):
    """A column of Arrow's; "image" is that of Hugging Face datasets."""
    pa = pytest.importorskip("pyarrow")
    if kind == "image":
        return pa.array(values, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    return pa.array(values, getattr(pa, kind)())


def write(path, columns, classes=CLASSES, rows=2, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pytest.importorskip("pyarrow").table(columns)
    table = table.replace_schema_metadata(metadata(classes))
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=rows, **options)
    return path


def images(start=0, stop=COUNT):
    values = [
        {"bytes": encoded(picture, "PNG"), "path": path}
        for path, picture in zip(PATHS, pictures(), strict=True)
    ]
    return array(values[start:stop], "image")


def parquet_files(root):
    """data/train-*.parquet: two files in three row groups and one, and one without rows."""
    for number, (start, stop) in enumerate([(0, 5), (5, 5), (5, 8)]):
        columns = {"image": images(start, stop), "label": array(LABELS[start:stop], "int64")}
        write(root / "data" / f"train-{number:05d}-of-00003.parquet", columns)
    (root / ".cache").mkdir()
    (root / ".cache" / "z.parquet").write_bytes(b"half a download")
    (root / "README.md").write_text("about")
    (root / "cover.png").touch()
    return root


@pytest.fixture
def files(tmp_path):
    return parquet_files(tmp_path / "set")


def shards_of(root):
    """Two shards as the webdataset package writes them, with labels in .cls."""
    webdataset = pytest.importorskip("webdataset")
    root.mkdir()
    for name, numbers in (("b.tar", range(5, COUNT)), ("a.tar", range(5))):
        with webdataset.TarWriter(str(root / name)) as shard:
            for number in numbers:
                image = {"png": encoded(pictures()[number], "PNG"), "cls": LABELS[number]}
                shard.write({"__key__": f"deep/{number:03d}", **image, "json": {"more": [1]}})
    (root / "README.md").write_text("not a shard")
    return root


def hugging_face(root):
    """All pictures with their labels, as datasets keeps them in memory."""
    datasets = pytest.importorskip("datasets")
    root.mkdir()
    for path, picture in zip(PATHS, pictures(), strict=True):
        picture.save(root / path)
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
    columns = {"image": [str(root / path) for path in PATHS], "label": LABELS}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


# Every kind becomes a cache


def dataset_of(form):
    pairs = list(zip(map(form, pictures()), LABELS, strict=True))
    return lambda root: (Samples(pairs, CLASSES), NUMBERS, CLASSES)


def hugging_face_parquet(root):
    hugging_face(root).save_to_disk(root / "saved")  # which takes the images in
    file = root / "set" / "data" / "train-00000-of-00001.parquet"
    pytest.importorskip("datasets").load_from_disk(root / "saved").to_parquet(file, batch_size=3)
    return root / "set", PATHS, CLASSES


def parquet_bytes(root, kind):
    data = array([encoded(picture, "PNG") for picture in pictures()], kind)
    for name, rows in (("b", slice(3, 8)), ("a", slice(0, 3))):
        write(root / f"{name}.parquet", {"image": data[rows], "label": LABELS[rows]})
    names = [*(f"a.parquet/{row}" for row in range(3)), *(f"b.parquet/{row}" for row in range(5))]
    return root, names, CLASSES


SHARDED = [f"{'ab'[number > 4]}.tar/deep/{number:03d}" for number in range(COUNT)]
SOURCES = {
    "PIL images": dataset_of(lambda picture: picture),
    "arrays": dataset_of(np.array),
    "tensors": dataset_of(lambda picture: torch.from_numpy(np.array(picture)).permute(2, 0, 1)),
    "Parquet files": lambda root: (parquet_files(root), PATHS, CLASSES),
    "Parquet files of bytes": lambda root: parquet_bytes(root, "binary"),
    "Parquet files of large bytes": lambda root: parquet_bytes(root, "large_binary"),
    "Hugging Face": lambda root: (hugging_face(root), NUMBERS, CLASSES),
    "files of Hugging Face": hugging_face_parquet,
    "shards": lambda root: (shards_of(root), SHARDED, []),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_source_becomes_a_cache(tmp_path, kind):
    source, names, classes = SOURCES[kind](tmp_path / "set")
    build_cache(source, tmp_path / "cache", (16,), raw=True, workers=2)
    assert_cached(tmp_path / "cache", pictures(), LABELS, names, classes)
    saved = json.loads((tmp_path / "cache/feedline-cache.json").read_text())["source"]
    assert kind != "arrays" or saved == ["dataset", "pictures.Samples"]


def test_feedline_folder_is_opened_as_its_files(tmp_path):
    root = write_images(tmp_path / "photos")
    chosen = ImageFolder(root, extensions=[".png"])
    source = open_source(chosen)
    assert source.kind == "folder"
    build_cache(chosen, tmp_path / "cache", (16,), raw=True, workers=1)
    names = ["cats/b.png", "dogs/palette.png", "dogs/see-through.png", "dogs/small.png"]
    originals = [Image.open(io.BytesIO((root / name).read_bytes())) for name in names]
    assert_cached(tmp_path / "cache", originals, [0, 1, 1, 1], names, ["cats", "dogs"])
    with pytest.raises(UsageError, match="is a cache"):
        open_source(ImageFolder(tmp_path / "cache"))
    with pytest.raises(UsageError, match="is a cache"):
        open_source(tmp_path / "cache")


STAMPED = {
    "Parquet files": (parquet_files, "data/train-00002-of-00003.parquet"),
    "shards": (shards_of, "b.tar"),
}


@pytest.mark.parametrize("kind", STAMPED)
def test_a_stamp_changes_with_the_file_and_the_place_in_it(tmp_path, kind):
    make, changed = STAMPED[kind]
    root = make(tmp_path / "set")

    def stamps():
        source = open_source(root)
        return [source.store.stamp(sample) for sample in range(COUNT)]

    before = stamps()
    assert len(set(before)) == COUNT
    assert stamps() == before
    os.utime(root / changed, ns=(0, 1))
    later = stamps()
    assert later[:5] == before[:5]
    assert not set(later[5:]) & set(before)


@pytest.mark.parametrize(
    ("make", "pattern", "keys"),
    [
        (parquet_files, "data/train-00002-of-00003.parquet", PATHS[5:]),
        (parquet_files, "data/train-0000[01]-*.parquet", PATHS[:5]),
        (shards_of, "a.tar", SHARDED[:5]),
        (shards_of, "[a].tar", SHARDED[:5]),
    ],
)
def test_one_file_or_a_pattern_may_be_named(tmp_path, make, pattern, keys):
    source = open_source(make(tmp_path / "set") / pattern)
    assert [source.store.key(sample) for sample in range(len(source))] == keys


# Which kind it is


def test_invalid_source_is_rejected(tmp_path):
    with pytest.raises(UsageError, match="got int"):
        open_source(3)
    with pytest.raises(UsageError, match=r"(?s)a dict of 'train', 'test'.*pass one"):
        open_source({"train": Samples([]), "test": Samples([])})
    with pytest.raises(DatasetError, match=r"absent.*No such file|absent"):
        open_source(tmp_path / "absent")
    tensors = TensorDataset(torch.zeros(2, 3, 9, 8))
    with pytest.raises(DatasetError, match=r"\(image, label\).*a tuple of 1"):
        open_source(tensors)
    for name in ("a.tar", "b.parquet"):
        (tmp_path / name).touch()
    with pytest.raises(DatasetError, match=r"files of several kinds, .*a\.tar.*b\.parquet"):
        open_source(tmp_path / "*")


def test_class_folders_are_preferred_to_archive_next_to_them(tmp_path):
    root = write_images(tmp_path / "photos")
    (root / "photos.tar.gz").write_bytes(b"")
    (root / "cover.png").write_bytes(b"")
    assert open_source(root).kind == "folder"
    assert open_source(str(root)).kind == "folder"


def test_train_and_val_are_not_classes(tmp_path):
    root = tmp_path / "data"
    for name in ("train", "val"):
        write_images(root / name)
    for named in (root, root.as_uri()):
        with pytest.raises(UsageError, match=r"/data/train' or .*/data/val'"):
            open_source(named)
    for place in (root, shutil.make_archive(str(root), "zip", root)):
        with pytest.warns(UserWarning, match=r"/train' or .*/val'"):
            both = ImageFolder(place)
        assert both.classes == ["train", "val"]
    for name in ("train", "val"):  # nor are their shards mixed
        (tmp_path / "shards" / name).mkdir(parents=True)
        (tmp_path / "shards" / name / "000.tar").touch()
    with pytest.raises(UsageError, match=r"/train' or .*/val'"):
        open_source(tmp_path / "shards")


def test_classes_named_like_splits_are_classes(tmp_path):
    root = write_images(tmp_path / "photos")
    (root / "cats").rename(root / "train")
    (root / "dogs").rename(root / "val")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {"train", "val"} <= set(ImageFolder(root).classes)
    assert {"train", "val"} <= set(open_source(root).classes)


# Shards


def test_image_is_chosen_by_extension_and_label_may_be_json(tmp_path):
    files = {
        "1.png": b"png",
        "1.jpg": b"jpg",
        "1.json": b'{"label": 3, "class": 5}',
        "2.json": b'{"cls": -1}',
        "2.tiff": b"tiff",
        "3.cls": b"2",
        "3.json": b"[" * 100_000,
        "3.webp": b"webp",
    }
    source = open_source(write_tar(tmp_path / "a.tar", files))
    assert [source.read(sample) for sample in range(3)] == [b"jpg", b"tiff", b"webp"]
    assert [source.store.label(sample) for sample in range(3)] == [3, -1, 2]
    assert source.classes is None


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"n01.tar": b""}, r"a\.tar/n01': it has no image: there is only \.tar"),
        ({"1.jpg": b"", "1.json": b'{"label": 9223372036854775808}'}, "label 9223372036854775808"),
        ({"1.jpg": b"", "1.json": b"{"}, r"a\.tar/1': it has no label: its \.json cannot be read"),
    ],
)
def test_malformed_shard_is_rejected_with_its_key(tmp_path, files, said):
    with pytest.raises(UsageError, match=said):  # DatasetError is one
        open_source(write_tar(tmp_path / "a.tar", files))


@pytest.mark.parametrize("name", ["a.tar.gz", "a.TGZ", "a.tar.zst"])
def test_compressed_shards_raise_with_hint(tmp_path, name):
    with tarfile.open(tmp_path / name, "w:gz"):
        pass
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(DatasetError, match=r"(?s)compressed.*\.tar files"):
            open_source(path)


# Parquet and Arrow files


@pytest.mark.parametrize(
    ("column", "label"), [("img", "labels"), ("png", "fine_label"), ("photo", "cls")]
)
def test_columns_are_found_by_their_names(tmp_path, column, label):
    columns = {"id": ["a"] * 8, label: array(LABELS, "uint8"), column: images()}
    source = open_source(write(tmp_path / "a.parquet", columns))
    assert source.read(6) == encoded(pictures()[6], "PNG")
    assert source.store.label(6) == LABELS[6]
    assert source.classes is None  # those of "label" are noted


@pytest.mark.parametrize("paths", [[None, "a"], ["a", "a"]])
@pytest.mark.parametrize("classes", [None, [], {"0": "ant"}, ["ant", 1]])
def test_unusable_paths_and_class_names_are_ignored(tmp_path, paths, classes):
    column = array([{"bytes": b"", "path": path} for path in paths], "image")
    columns = {"image": column, "label": [0, 1]}
    source = open_source(write(tmp_path / "a.parquet", columns, classes))
    assert [source.store.key(sample) for sample in range(2)] == ["a.parquet/0", "a.parquet/1"]
    assert source.classes is None


def test_row_group_is_read_once_for_consecutive_rows(files, monkeypatch):
    source = open_source(files)
    read = []
    kind = pytest.importorskip("pyarrow.parquet").ParquetFile
    original = kind.read_row_group

    def counted(self, number, **options):
        read.append(number)
        return original(self, number, **options)

    monkeypatch.setattr(kind, "read_row_group", counted)
    for sample in range(len(source)):
        assert source.read(sample) == encoded(pictures()[sample], "PNG")
    assert read == [0, 1, 2, 0, 1]
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(3) == encoded(pictures()[3], "PNG")
    assert len(pickle.dumps(copy)) < len(pickle.dumps(source)) + 100  # no images travel


def test_row_without_bytes_raises(tmp_path):
    rows = [{"bytes": None, "path": "/data/a.png"}, {"bytes": None, "path": None}, None]
    columns = {"image": array(rows, "image"), "label": [0, 1, 2]}
    source = open_source(write(tmp_path / "a.parquet", columns))
    with pytest.raises(ImageError, match=r"has a path, '/data/a.png', but not the bytes"):
        source.read(0)
    for sample in (1, 2):
        with pytest.raises(ImageError, match="its row has no image"):
            source.read(sample)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (lambda: {"label": [1]}, "lacks an image column named 'image', 'img'.*'label' .int64."),
        (lambda: {"image": ["a.jpg"], "label": [1]}, "lacks an image column.*'image' .string."),
        (lambda: {"image": images(0, 1)}, "lacks a column of whole numbers named 'label'"),
        (lambda: {"image": images(0, 1), "label": [0.5]}, "lacks a column of whole numbers"),
        (lambda: {"a": images(0, 1), "b": images(0, 1), "label": [1]}, "lacks an image column"),
        (lambda: {"image": images(0, 2), "label": [1, None]}, "1 rows of .* have no 'label'"),
        (lambda: {"image": images(0, 0), "label": array([], "int64")}, "have no rows"),
    ],
)
def test_file_without_images_or_labels_is_rejected(tmp_path, columns, said):
    path = write(tmp_path / "a.parquet", columns())
    with pytest.raises(DatasetError, match=said) as refused:
        open_source(path)
    assert "a.parquet" in str(refused.value)


def test_files_with_different_classes_or_splits_are_rejected(files):
    columns = {"image": images(), "label": LABELS}
    other = write(files / "data" / "train-00003-of-00003.parquet", columns, CLASSES[::-1])
    with pytest.raises(DatasetError, match=r"00000.*' and '.*00003.*' of .* differ"):
        open_source(files)
    other.rename(files / "data" / "test-00000-of-00001.parquet")
    with pytest.raises(DatasetError, match=r"(?s)several splits, test, train.*train-\*\.parquet"):
        open_source(files)
    assert len(open_source(files / "data" / "train-*.parquet")) == len(LABELS)


def test_damaged_file_is_named_in_error(files):
    path = files / "data" / "train-00000-of-00003.parquet"
    source = open_source(files)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(1000) + whole[1004:])
    with pytest.raises(ImageError, match=r"cannot read .*train-00000-of-00003\.parquet': "):
        source.read(0)
    path.write_bytes(whole[:-100])
    with pytest.raises(DatasetError, match=r"cannot read .*train-00000-of-00003\.parquet': "):
        open_source(files)


def test_too_large_row_group_and_missing_pyarrow_are_rejected(files, monkeypatch):
    monkeypatch.setattr(rows_module, "_MAX_GROUP_BYTES", 1000)
    with pytest.raises(DatasetError, match=r"has a row group with .* GB of images"):
        open_source(files)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r'pip install "feedline\[parquet\]"'):
        open_source(files)


def test_arrow_files_of_hugging_face_are_rejected_but_can_be_loaded(tmp_path):
    datasets = pytest.importorskip("datasets")
    dataset = hugging_face(tmp_path / "set")
    dataset.save_to_disk(tmp_path / "saved")
    with pytest.raises(DatasetError, match=r"datasets\.load_from_disk"):
        open_source(tmp_path / "saved")
    assert len(open_source(datasets.load_from_disk(tmp_path / "saved"))) == len(LABELS)
    with pytest.raises(UsageError, match=r"(?s)a DatasetDict of 'train'.*pass one"):
        open_source(datasets.DatasetDict({"train": dataset}))
