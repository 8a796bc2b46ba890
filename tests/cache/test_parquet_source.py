"""Caches of Parquet files with images, and files that are not as they should be."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from pictures import CLASSES, LABELS, assert_cached, encoded, pictures

from feedline.cache.build import build_cache
from feedline.cache.source import open_source
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources import rows as rows_module

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def metadata(classes: Any, column: str = "label") -> dict[str, str]:
    """Schema metadata as written by Hugging Face datasets."""
    feature = {"names": classes, "_type": "ClassLabel"}
    return {"huggingface": json.dumps({"info": {"features": {column: feature}}})}


def write(
    path: Path, columns: dict[str, Any], classes: Any = CLASSES, rows: int = 2, **options: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns).replace_schema_metadata(metadata(classes))
    pq.write_table(table, path, row_group_size=rows, **options)
    return path


def images(start: int = 0, stop: int = len(LABELS), paths: bool = True) -> Any:
    values = [
        {"bytes": encoded(picture), "path": f"{number}.png" if paths else None}
        for number, picture in enumerate(pictures())
    ]
    return pa.array(values[start:stop], IMAGE)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """data/train-*.parquet: two files in three row groups and one, and one without rows."""
    root = tmp_path / "set"
    for number, (start, stop) in enumerate([(0, 5), (5, 5), (5, 8)]):
        columns = {"image": images(start, stop), "label": pa.array(LABELS[start:stop], pa.int64())}
        write(root / "data" / f"train-{number:05d}-of-00003.parquet", columns)
    (root / ".cache").mkdir()
    (root / ".cache" / "z.parquet").write_bytes(b"half a download")
    (root / "README.md").write_text("about")
    (root / "cover.png").touch()
    return root


@pytest.mark.parametrize("workers", [1, 2])
def test_parquet_files_become_a_cache(files: Path, tmp_path: Path, workers: int) -> None:
    build_cache(files, tmp_path / "cache", (16,), raw=True, workers=workers)
    names = [f"{number}.png" for number in range(len(LABELS))]
    assert_cached(tmp_path / "cache", pictures(), LABELS, names, CLASSES)


def test_one_file_or_a_pattern_may_be_named(files: Path) -> None:
    one = open_source(files / "data" / "train-00002-of-00003.parquet")
    assert [one.store.key(sample) for sample in range(len(one))] == ["5.png", "6.png", "7.png"]
    some = open_source(files / "data" / "train-0000[01]-*.parquet")
    assert [some.store.label(sample) for sample in range(len(some))] == LABELS[:5]


@pytest.mark.parametrize("column", ["img", "jpg", "png", "photo"])
@pytest.mark.parametrize("label", ["labels", "fine_label", "cls"])
def test_columns_are_found_by_their_names(tmp_path: Path, column: str, label: str) -> None:
    columns = {"id": ["a"] * 8, label: pa.array(LABELS, pa.uint8()), column: images()}
    source = open_source(write(tmp_path / "a.parquet", columns))
    assert source.read(6) == encoded(pictures()[6])
    assert source.store.label(6) == LABELS[6]
    assert source.classes is None  # those of "label" are noted


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_images_may_be_plain_bytes_with_rows_as_names(tmp_path: Path, kind: Any) -> None:
    data = pa.array([encoded(picture) for picture in pictures()], kind)
    for name, rows in (("b", slice(3, 8)), ("a", slice(0, 3))):
        write(tmp_path / "set" / f"{name}.parquet", {"image": data[rows], "label": LABELS[rows]})
    build_cache(tmp_path / "set", tmp_path / "cache", (16,), raw=True, workers=1)
    names = [*(f"a.parquet/{row}" for row in range(3)), *(f"b.parquet/{row}" for row in range(5))]
    assert_cached(tmp_path / "cache", pictures(), LABELS, names, CLASSES)


@pytest.mark.parametrize("paths", [[None, "a"], ["a", "a"]])
def test_missing_or_duplicate_paths_are_not_used_as_names(tmp_path: Path, paths: list[Any]) -> None:
    column = pa.array([{"bytes": b"", "path": path} for path in paths], IMAGE)
    source = open_source(write(tmp_path / "a.parquet", {"image": column, "label": [0, 1]}))
    assert [source.store.key(sample) for sample in range(2)] == ["a.parquet/0", "a.parquet/1"]


@pytest.mark.parametrize("classes", [None, [], {"0": "ant"}, ["ant", 1], "ant"])
def test_invalid_class_list_is_ignored(tmp_path: Path, classes: Any) -> None:
    columns = {"image": images(), "label": LABELS}
    assert open_source(write(tmp_path / "a.parquet", columns, classes)).classes is None


def test_row_group_is_read_once_for_consecutive_rows(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(files)
    read = []
    original = pq.ParquetFile.read_row_group

    def counted(self: Any, number: int, **options: Any) -> Any:
        read.append(number)
        return original(self, number, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    for sample in range(len(source)):
        assert source.read(sample) == encoded(pictures()[sample])
    assert read == [0, 1, 2, 0, 1]
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(3) == encoded(pictures()[3])
    assert len(pickle.dumps(copy)) < len(pickle.dumps(source)) + 100  # no images travel


def test_row_without_bytes_raises(tmp_path: Path) -> None:
    rows = [{"bytes": None, "path": "/data/a.png"}, {"bytes": None, "path": None}, None]
    columns = {"image": pa.array(rows, IMAGE), "label": [0, 1, 2]}
    source = open_source(write(tmp_path / "a.parquet", columns))
    with pytest.raises(ImageError, match=r"has a path, '/data/a.png', but not the bytes"):
        source.read(0)
    for sample in (1, 2):
        with pytest.raises(ImageError, match="its row has no image"):
            source.read(sample)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"label": [1]}, "lacks an image column named 'image', 'img'.*'label' .int64."),
        ({"image": ["a.jpg"], "label": [1]}, "lacks an image column.*'image' .string."),
        ({"image": images(0, 1)}, "lacks a column of whole numbers named 'label', 'labels'"),
        ({"image": images(0, 1), "label": ["ant"]}, "lacks a column of whole numbers"),
        ({"image": images(0, 1), "label": [0.5]}, "lacks a column of whole numbers"),
        ({"a": images(0, 1), "b": images(0, 1), "label": [1]}, "lacks an image column"),
        ({"image": images(0, 2), "label": [1, None]}, "1 rows of .* have no 'label'"),
        ({"image": images(0, 0), "label": pa.array([], pa.int64())}, "have no rows"),
    ],
)
def test_file_without_images_or_labels_is_rejected(
    tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(DatasetError, match=said) as refused:
        open_source(path)
    assert "a.parquet" in str(refused.value)


def test_files_with_different_classes_or_splits_are_rejected(files: Path) -> None:
    columns = {"image": images(), "label": LABELS}
    other = write(files / "data" / "train-00003-of-00003.parquet", columns, CLASSES[::-1])
    with pytest.raises(DatasetError, match=r"00000.*' and '.*00003.*' of .* differ"):
        open_source(files)
    other.rename(files / "data" / "test-00000-of-00001.parquet")
    with pytest.raises(DatasetError, match=r"(?s)several splits, test, train.*train-\*\.parquet"):
        open_source(files)
    assert len(open_source(files / "data" / "train-*.parquet")) == len(LABELS)


def test_damaged_file_is_named_in_error(files: Path) -> None:
    path = files / "data" / "train-00000-of-00003.parquet"
    source = open_source(files)
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + bytes(1000) + whole[1004:])
    with pytest.raises(ImageError, match=r"cannot read .*train-00000-of-00003\.parquet': "):
        source.read(0)
    path.write_bytes(whole[:-100])
    with pytest.raises(DatasetError, match=r"cannot read .*train-00000-of-00003\.parquet': "):
        open_source(files)


def test_too_large_row_group_is_rejected(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_MAX_GROUP_BYTES", 1000)
    with pytest.raises(DatasetError, match=r"has a row group with .* GB of images"):
        open_source(files)


def test_a_stamp_changes_with_the_file_and_the_row(files: Path) -> None:
    stamps = [open_source(files).store.stamp(sample) for sample in range(len(LABELS))]
    assert len(set(stamps)) == len(LABELS)
    os.utime(files / "data" / "train-00002-of-00003.parquet", ns=(0, 1))
    later = [open_source(files).store.stamp(sample) for sample in range(len(LABELS))]
    assert later[:5] == stamps[:5]
    assert not set(later[5:]) & set(stamps)


def test_missing_pyarrow_raises_with_install_hint(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r'pip install "feedline\[parquet\]"'):
        open_source(files)
