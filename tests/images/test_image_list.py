"""Lists of images with labels of any kind: from sequences, CSV, Parquet and frames."""

import gzip
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from feedline import DataLoader, EvalCrop, ImageArray, ImageList, build_cache
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.order.batch_spec import Field
from feedline.sources.manifest import read_manifest
from row_of import row

NAMES = [f"{kind}/{number}.jpg" for kind in ("cats", "dogs") for number in range(6)]
SORTS = ["cat"] * 6 + ["dog"] * 6


def listed(root, labels=None, names=None, **options):
    names = NAMES if names is None else names
    return ImageList(names, SORTS if labels is None else labels, root=root, **options)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("labels", "field", "values"),
    [
        ([5, -1, 0], Field("label", "int64", ()), [5, -1, 0]),
        ([True, False, True], Field("label", "int64", ()), [1, 0, 1]),
        ([1, 0.5, 2], Field("label", "float32", ()), [1, 0.5, 2]),
        ([[1, 0], [0, 1], [1, 1]], Field("label", "int64", (2,)), [[1, 0], [0, 1], [1, 1]]),
        (np.array([1.5, 2, 3]), Field("label", "float32", ()), [1.5, 2, 3]),
        (np.eye(3, dtype=bool), Field("label", "int64", (3,)), np.eye(3).tolist()),
        ([torch.tensor([1, 2])] * 3, Field("label", "int64", (2,)), [[1, 2]] * 3),
        (np.array(["b", "a", "b"]), Field("label", "int64", ()), [1, 0, 1]),
    ],
)
def test_labels_of_every_kind(jpeg_folder, labels, field, values):
    data = listed(jpeg_folder, labels, NAMES[:3])
    assert data.fields(16)[1] == field
    assert data.targets.tolist() == values
    assert row(data, 1)[1].tolist() == values[1]
    with DataLoader(data, 3, image_size=16) as loader:
        _, batch = next(iter(loader))
    assert batch.tolist() == values
    assert str(batch.dtype) == f"torch.{field.dtype}"


def test_classes_may_be_given(jpeg_folder):
    data = listed(jpeg_folder, classes=["dog", "eel", "cat"])
    assert data.targets.tolist() == [2] * 6 + [0] * 6
    assert data.classes == ["dog", "eel", "cat"]
    labels = ["cat ", *["cat"] * 11]
    assert listed(jpeg_folder, labels, classes=["cat", "cat "]).targets.tolist() == [1] + [0] * 11
    assert listed(jpeg_folder, [1] * 12, classes=["a", "b"]).class_to_idx == {"a": 0, "b": 1}


ORDER = "one per path in the same order"
NO_LABEL = r"sample 1.* no label \("
REFUSED = {
    "too few": ([1], {}, "12 images but 1 labels"),
    "one text": ("cat", {}, "labels must be a sequence"),
    "mixed": (
        [1, "cat", *[1] * 10],
        {},
        r"mixed types .*sample 0.*has 1 \(int\) and sample 1, 'ca",
    ),
    "missing": ([1, None, *[1] * 10], {}, r"sample 1, 'cats/1.jpg', has no label \(None\)"),
    "no name": (["a", "", *["b"] * 10], {}, "sample 1.* has no label"),
    "blanks": (["a", "b ", *["b"] * 10], {}, "sample 2.* and sample 1.*differ only in bl"),
    "NaN among names": (["a", float("nan"), *["b"] * 10], {}, NO_LABEL),
    "infinite": ([[0.5, float("inf")]] * 12, {}, r"sample 0.*inf\], which is not a finite number"),
    "infinite as float32": ([1e300] * 12, {}, r"1e\+300, which is not a finite number of float32"),
    "rows of texts": ([["a", "b"]] * 12, {}, "sample 0.*'a'.*must be texts, numbers"),
    "rows of two lengths": ([[1], *[[1, 2]] * 11], {}, "mixed types or lengths.*sample 1"),
    "too large": ([2**70] * 12, {}, "fit into 64 bits"),
    "too large for a sign": (np.full(12, 2**63, np.uint64), {}, "not a finite number of int64"),
    "too large beside others": ([2**64 - 1, *[-1] * 11], {}, "sample 0.*fit into 64 bits"),
    "an array without an axis": (np.array(3), {}, ORDER),
    "unknown": (SORTS, {"classes": ["cats", "dog"]}, "6 of 12.*sample 0.*'cat'; nearest: 'cats'"),
    "beyond": ([*[0] * 11, 2], {"classes": ["a", "b"]}, "sample 11.* label 2, but there are 2"),
    "fractions": ([0.5] * 12, {"classes": ["a"]}, "only whole numbers and texts are classes"),
    "a class twice": (SORTS, {"classes": ["a", "a"]}, "classes has 'a' twice"),
    "classes without an order": (SORTS, {"classes": {"cat", "dog"}}, "sequence of names"),
    "no separator": (["x y"] * 12, {"separator": ""}, "separator must be"),
    "numbers for tags": ([1] * 12, {"separator": " "}, "sample 0.* 1.* must be texts"),
    "no tags": ([""] * 12, {"separator": " "}, "no sample has a class"),
    "another tag": (["x", "x q"] * 6, {"separator": " ", "classes": ["x"]}, "sample 1.* has 'q'"),
    "NaN among tags": (["x nan", *["x"] * 11], {"separator": " "}, "sample 0.*a missing value"),
    "no paths": (SORTS, {"names": []}, "paths is empty"),
    "a folder": (SORTS, {"names": "train"}, "use feedline.ImageFolder"),
    "numbers for paths": (SORTS, {"names": [*NAMES[:11], 3]}, r"sample 11 has 3 \(int\)"),
    "an empty path": (SORTS, {"names": [*NAMES[:11], ""]}, "sample 11 has an empty path"),
    "half a character": (SORTS, {"names": ["a\ud800b", *NAMES[:11]]}, r"'.ud800', .*names: 'a"),
    "a zero byte": (SORTS, {"names": ["a\0b", *NAMES[:11]]}, "a path with a zero byte"),
    "root": (SORTS, {"root": 3}, "root must"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_arguments_are_rejected(jpeg_folder, case):
    labels, options, said = REFUSED[case]
    with pytest.raises(UsageError, match=said):
        listed(**{"root": jpeg_folder, "labels": labels, **options})


def test_paths_may_be_absolute_relative_repeated_and_anywhere(jpeg_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(jpeg_folder / "cats")
    other = tmp_path / "other.jpg"
    other.write_bytes((jpeg_folder / "dogs/0.jpg").read_bytes())
    names = ["1.jpg", Path("../dogs/2.jpg"), str(other), "1.jpg", str(jpeg_folder / "cats/3.jpg")]
    data = ImageList(names, [0, 1, 2, 0, 4])
    for sample, name in enumerate(names):
        assert os.path.samefile(data.path(sample), name)
        row(data, sample)
    assert ImageList(["1.jpg"], [0]).root == str(jpeg_folder / "cats")
    assert os.path.isabs(data.root)


def test_the_fingerprint_is_of_paths_below_the_root_and_of_labels(jpeg_folder):
    inside = [str(jpeg_folder / name) for name in NAMES]
    prints = [
        listed(jpeg_folder),
        ImageList(inside, SORTS, root=jpeg_folder),
        listed(Path("/nowhere")),
        listed(jpeg_folder, transform=EvalCrop()),
    ]
    assert len({data.fingerprint() for data in prints}) == 1
    others = [
        listed(jpeg_folder, [0] * 12),
        listed(jpeg_folder, [0.0] * 12),
        listed(jpeg_folder, [1.0] * 12),
        listed(jpeg_folder, [[0.0]] * 12),
        listed(jpeg_folder, names=[*NAMES[:11], "dogs/other.jpg"]),
        prints[0],
    ]
    assert len({data.fingerprint() for data in others}) == len(others)
    assert prints[0].transform_identity() != prints[3].transform_identity()


def test_missing_file_raises_when_it_is_read_or_searched(jpeg_folder):
    names = [*NAMES[:11], "dogs/none.jpg"]
    data = listed(jpeg_folder, names=names)
    with pytest.raises(
        ImageError, match=r"sample 11, .*/dogs/none\.jpg, cannot be loaded: .*No su"
    ):
        row(data, 11)
    with DataLoader(data, 12, image_size=16, on_error="skip") as loader:
        assert len(next(iter(loader))[0]) == 11
        assert "none.jpg" in str(loader.skipped)
    with pytest.raises(DatasetError, match=r"1 of 12 images are missing.*none\.jpg"):
        listed(jpeg_folder, names=names, check=True)
    assert len(listed(jpeg_folder, check=True)) == 12


# ------------------------------------------------------------------- tables


def test_a_csv_file_is_read_and_its_folder_is_the_root(jpeg_folder, tmp_path, monkeypatch):
    lines = [f'"{name}",{sort},x' for name, sort in zip(NAMES, SORTS, strict=True)]
    text = "\ufeff" + "\r\n".join(["path,label,more", *lines, "", ""])
    root = shutil.copytree(jpeg_folder, tmp_path / "images")
    write(root / "train.csv", text)
    monkeypatch.setenv("HOME", str(root))
    data = ImageList.from_csv("~/train.csv", transform=EvalCrop(), check=True)
    assert data.fingerprint() == listed(jpeg_folder).fingerprint()
    assert data.root == str(root)
    assert data.transform == EvalCrop()
    moved = write(tmp_path / "elsewhere.tsv", text.replace(",", "\t"))
    moved_list = ImageList.from_csv(str(moved), sep="\t", root=jpeg_folder, check=True)
    assert moved_list.fingerprint() == data.fingerprint()


@pytest.mark.parametrize(
    ("column", "label", "options", "values"),
    [
        (["1", " 2", "-3"], "a", {}, [1, 2, -3]),
        (["1", "2.5", "1e-1"], "a", {}, [1, 2.5, np.float32(0.1)]),
        (["b", "a", "b"], "a", {}, [1, 0, 1]),
        (["1", "0", "0"], "a", {"classes": ["1", "0"]}, [0, 1, 1]),
        (["1", "0", "0"], "a", {"classes": ["cat", "dog"]}, [1, 0, 0]),
        (["cat", "cat", "dog"], "a", {"classes": ["cat", "dog"]}, [0, 0, 1]),
        (["1", "2", "3"], ["a", "b"], {}, [[1, 0], [2, 0], [3, 0]]),
        (["1", "2.5", "3"], ["b", "a"], {}, [[0, 1], [0, 2.5], [0, 3]]),
    ],
)
def test_column_is_numeric_if_all_cells_are(tmp_path, column, label, options, values):
    lines = [f"{number}.jpg,{cell},0" for number, cell in enumerate(column)]
    csv = write(tmp_path / "a.csv", "\n".join(["file,a,b", *lines]))
    data = ImageList.from_csv(csv, "file", label, **options)
    assert data.targets.tolist() == values


A_LABEL, COLUMN = "path,label\na,1", "must be the name of a column"
BAD_TABLES = {
    "no such column": ("paths,label\na,1", {}, "no column 'path'; nearest: 'paths'. Its col"),
    "one of several": ("path,a\nx,1", {"label": ["a", "zz"]}, "no column 'zz'. Its columns"),
    "twice": ("path,label,label\na,1,2", {}, "2 columns named 'label'"),
    "no rows": ("path,label\n", {}, "has no rows"),
    "cut": ("path,label\na,1\nb", {}, "1 cells in line 3, but 2 columns"),
    "mixed": ("path,label\na,1\nb,cat", {}, "mixed types: 'cat' of sample 1.*but '1' is.*clas"),
    "no label": ("path,label\na,1\nb,", {}, r"sample 1, 'b', has no label \(''\)"),
    "a name among several": ("path,a\nx,\ny,b", {"label": ["a"]}, "must be texts, numbers"),
    "open quotes": ('path,label\n"a,1', {}, "cannot be read: unexpected end"),
    "two characters": (A_LABEL, {"sep": ",,"}, "sep must be one character"),
    "a number for a name": (A_LABEL, {"image": 0}, f"image {COLUMN}"),
    "semicolons": ("path;label\na;1", {}, "(?s)no column 'path'.* 'path;label'.* sep=';'"),
    "thousands of digits": (f"path,label\na,{'9' * 5000}", {}, "not a finite number of float32"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_unusable_table_is_rejected(tmp_path, case):
    text, options, said = BAD_TABLES[case]
    with pytest.raises(UsageError, match=said):
        ImageList.from_csv(write(tmp_path / "a.csv", text), **options)


def test_invalid_csv_file_is_rejected(tmp_path):
    with pytest.raises(DatasetError, match="cannot be read: No such file"):
        ImageList.from_csv(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"path,label\n\xe4.jpg,1")
    with pytest.raises(DatasetError, match="must be text in UTF-8"):
        ImageList.from_csv(tmp_path / "latin.csv")
    for given, said in ((None, "got None"), ("s3://bucket/a.csv", "download it")):
        with pytest.raises(UsageError, match=said):
            ImageList.from_csv(given)


def test_a_parquet_file_is_read(jpeg_folder, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(
        {
            "path": NAMES,
            "label": pyarrow.array(SORTS).dictionary_encode(),
            "boxes": [[0.5, k] for k in range(12)],
            "gaps": [None, *[1] * 11],
        }
    )
    file = tmp_path / "train.parquet"
    parquet.write_table(table, file)
    data = ImageList.from_parquet(file, root=jpeg_folder)
    assert data.fingerprint() == listed(jpeg_folder).fingerprint()
    boxes = ImageList.from_parquet(file, label="boxes")
    assert boxes.root == str(tmp_path)
    assert boxes.fields(8)[1] == Field("label", "float32", (2,))
    with pytest.raises(UsageError, match=r"sample 0, 'cats/0.jpg', has no label \(None\)"):
        ImageList.from_parquet(file, label="gaps")
    with pytest.raises(DatasetError, match="cannot be read"):
        ImageList.from_parquet(write(tmp_path / "text.parquet", "path,label"))
    no_text = pyarrow.array([b"\xff.jpg"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"path": no_text, "label": [1]}), file)
    with pytest.raises(DatasetError, match="cannot be read: 'utf-8' codec"):
        ImageList.from_parquet(file)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_frame_is_read(jpeg_folder, package):
    frames = pytest.importorskip(package)
    columns = {"path": NAMES, "label": SORTS, "x": [k / 2 for k in range(12)], "y": [1] * 12}
    frame = frames.DataFrame(columns)
    data = ImageList.from_frame(frame, root=jpeg_folder, transform=EvalCrop())
    assert data.fingerprint() == listed(jpeg_folder).fingerprint()
    several = ImageList.from_frame(frame, label=["x", "y"], root=jpeg_folder)
    assert several.targets.tolist() == [[k / 2, 1] for k in range(12)]
    with pytest.raises(UsageError, match=rf"{package} DataFrame has no column 'lable'"):
        ImageList.from_frame(frame, label="lable")
    with pytest.raises(DatasetError, match="has no rows"):
        ImageList.from_frame(frame[:0])
    with pytest.raises(UsageError, match=r"got builtins\.dict"):
        ImageList.from_frame(columns)


# ------------------------------------------------------------------- under a loader


def batches(loader):
    return [(images.clone(), labels.clone()) for images, labels in loader]


@pytest.mark.slow
def test_a_cache_fills_itself_of_a_list_with_repeats(jpeg_folder, tmp_path):
    names = [*NAMES, NAMES[0]]
    root = shutil.copytree(jpeg_folder, tmp_path / "images")
    data = listed(root, [*SORTS, "cat"], names, transform=EvalCrop())
    cache = root / "cache"  # next to the images, which a list allows
    options = {"image_size": 16, "num_workers": 1, "shuffle": False, "seed": 0}
    with DataLoader(data, 4, cache=cache, **options) as loader:
        first, second = batches(loader), batches(loader)
    manifest = read_manifest(str(cache))
    assert (manifest.samples, manifest.classes) == (12, ("cat", "dog"))
    for (images, labels), (other, other_labels) in zip(first, second, strict=True):
        assert torch.equal(labels, other_labels)
        assert (images.float() - other.float()).abs().mean() < 8


SIZES = ["small", "medium", "large", "huge"]
ROWS = ["medium", "small", "large", "small"]


def ways_in(frame, file):
    """One table as a frame, as a Parquet file, as columns, and with an array of images."""
    (frame.to_parquet if hasattr(frame, "to_parquet") else frame.write_parquet)(file)
    paths, labels = list(frame["path"]), frame["label"]
    array = ImageArray(np.zeros((len(paths), 8, 8, 3), np.uint8), labels)
    return [
        ImageList.from_frame(frame),
        ImageList.from_parquet(file),
        ImageList(paths, labels),
        array,
    ]


@pytest.mark.parametrize("ordered", [True, False])
def test_pandas_categories_are_numbered_in_one_way(tmp_path, ordered):
    pandas, pytest_parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    column = pandas.Categorical(ROWS, categories=SIZES, ordered=ordered)
    frame = pandas.DataFrame({"path": [f"{k}.jpg" for k in range(4)], "label": column})
    file = tmp_path / "a.parquet"
    for part, targets in ((frame, [1, 0, 2, 0]), (frame[2:], [2, 0])):
        ways = ways_in(part, file)
        ways += [ImageList(list(part["path"]), part["label"].array)]
        if ordered:
            ways += [ImageList(list(part["path"]), pytest_parquet.read_table(file)["label"])]
            ways += [ImageList.from_frame(pandas.read_parquet(file, dtype_backend="pyarrow"))]
        assert [(data.classes, data.targets.tolist()) for data in ways] == [(SIZES, targets)] * len(
            ways
        )
    reverse = np.array(SIZES[::-1])
    assert ImageList.from_parquet(file, classes=reverse).targets.tolist() == [1, 3]
    frame.to_parquet(file, row_group_size=2)
    assert ImageList.from_parquet(file).classes == SIZES
    frame.to_parquet(file, use_dictionary=False)  # so the file does not hold the order
    with pytest.raises(UsageError, match=r"'label' .*order") as caught:
        ImageList.from_parquet(file)
    assert "classes=" in caught.value.advice
    assert ImageList.from_parquet(file, classes=SIZES).targets.tolist() == [1, 0, 2, 0]
    other = frame.assign(label=pandas.Categorical(ROWS, categories=SIZES[::-1]))
    joined = pandas.concat([frame, other], ignore_index=True)  # of categories or texts
    assert len({(*data.classes, *data.targets.tolist()) for data in ways_in(joined, file)}) == 1


def test_polars_enum_is_numbered_in_one_way_and_categorical_sorted(tmp_path):
    polars = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    columns = {"path": [f"{k}.jpg" for k in range(4)], "label": ROWS}
    for kind, classes in (
        (polars.Enum([*SIZES, "größe;1"]), [*SIZES, "größe;1"]),
        (polars.Categorical, sorted(set(ROWS))),
    ):
        frame = polars.DataFrame(columns, schema_overrides={"label": kind})
        ways = ways_in(frame, tmp_path / "a.parquet")
        ways.append(ImageList(columns["path"], frame.to_arrow()["label"]))
        numbers = [classes.index(name) for name in ROWS]
        assert [(data.classes, data.targets.tolist()) for data in ways] == [
            (classes, numbers)
        ] * len(ways)


ROWS_OF_TWO = [[1, 2], [3, 4]]
ARROW = {
    "texts": (lambda pa: pa.array(["b", "a"]), [1, 0]),
    "categories": (lambda pa: pa.array(["b", "a"]).dictionary_encode(), [1, 0]),
    "floats": (lambda pa: pa.array([0.5, 2], pa.float32()), [0.5, 2]),
    "truths": (lambda pa: pa.array([True, False]), [1, 0]),
    "lists": (lambda pa: pa.array(ROWS_OF_TWO), ROWS_OF_TWO),
    "fixed lists": (lambda pa: pa.array(ROWS_OF_TWO, pa.list_(pa.float32(), 2)), ROWS_OF_TWO),
    "large lists": (lambda pa: pa.array(ROWS_OF_TWO, pa.large_list(pa.int16())), ROWS_OF_TWO),
}
FRAME = {"x": [1, 2], "y": [4, 5], "z": [7, 8]}
GAPS = torch.tensor([[0.5, 1.0], [2.0, float("nan")]])
COLUMNS = {
    **{f"arrow {name}": ("pyarrow", *each) for name, each in ARROW.items()},
    "pandas numbers": (
        "pandas",
        lambda pandas: pandas.Categorical([30, 10], categories=[30, 10, 5]),
        [30, 10],
    ),
    **{
        f"frame of {name}": (name, lambda library: library.DataFrame(FRAME), [[1, 4, 7], [2, 5, 8]])
        for name in ("pandas", "polars")
    },
    **{
        f"{dtype}, {name}": ("torch", lambda _, dtype=dtype, form=form: form(GAPS.to(dtype)), GAPS)
        for dtype in (torch.bfloat16, torch.float16)
        for name, form in (("tensor", lambda rows: rows), ("list of rows", list))
    },
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_of_any_library_are_labels(tmp_path, case):
    library, make, targets = COLUMNS[case]
    try:
        column = make(pytest.importorskip(library))
    except AttributeError as error:  # of older versions
        pytest.skip(str(error))
    images, paths = np.zeros((2, 8, 8, 3), np.uint8), ["b", "a"]
    ways = [ImageList(paths, column), ImageArray(images, column)]
    if case == "pandas numbers":
        frame = pytest.importorskip(library).DataFrame({"path": paths, "label": column})
        ways += ways_in(frame, tmp_path / "a.parquet")
    if library == "pyarrow":
        pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
        ways.append(ImageList(pyarrow.array(paths), pyarrow.chunked_array([column])))
        table = pyarrow.table({"path": paths, "label": column})
        try:
            parquet.write_table(table, tmp_path / "a.parquet")
            ways.append(ImageList.from_parquet(tmp_path / "a.parquet"))
        except pyarrow.ArrowNotImplementedError:  # of older versions
            pass
    for data in ways:
        assert np.array_equal(data.targets, targets, equal_nan=True)
        assert case != "arrow floats" or data.targets.dtype == np.float32


@pytest.mark.parametrize(
    ("package", "values", "dtype"),
    [
        ("pandas", [2, None], "Int64"),
        ("pandas", ["a", None], "category"),
        ("polars", [2, None], None),
    ],
)
def test_gap_in_a_column_is_named(package, values, dtype, tmp_path):
    column = pytest.importorskip(package).Series(values, dtype=dtype)
    with pytest.raises(UsageError, match=r"sample 1, .* has no label"):
        ImageList(["a", "b"], column)
    with pytest.raises(UsageError, match="image 1 has no label"):
        ImageArray(np.zeros((2, 8, 8, 3), np.uint8), column)
    if dtype == "category":
        pytest.importorskip("pyarrow")
        frame = column.to_frame("label").assign(path=["a", "b"])
        frame.to_parquet(tmp_path / "a.parquet")
        with pytest.raises(UsageError, match=r"sample 1.* has no label"):
            ImageList.from_parquet(tmp_path / "a.parquet")


# ------------------------------------------------------------------- repeats and gaps


def test_an_image_may_have_a_row_for_each_object(tmp_path):
    lines = ["path,x,y,name", *(f"{NAMES[0]},{k},{k + 1},{'ab'[k % 2]}" for k in range(3))]
    csv = write(tmp_path / "boxes.csv", "\n".join(lines))
    boxes = ImageList.from_csv(csv, label=["x", "y"])
    with pytest.warns(UserWarning, match="sample 0.*repeated as sample 1 .*: 0 and 1"):
        names = ImageList.from_csv(csv, label="name")
    assert boxes.targets.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert names.targets.tolist() == [0, 1, 0]


def test_cache_of_repeats_with_other_labels_warns_and_serves_the_list(jpeg_folder, tmp_path):
    labels = [[k, 0.5] for k in range(13)]
    data = listed(jpeg_folder, labels, [*NAMES, NAMES[0]], transform=EvalCrop())
    with pytest.warns(UserWarning, match="1 of 13 rows"):
        build_cache(data, tmp_path / "cache", (24,), workers=0)
    with DataLoader(data, 13, image_size=16, cache=tmp_path / "cache", num_workers=0) as loader:
        assert next(iter(loader))[1].tolist() == labels


def test_gaps_in_numbers_are_nan_however_the_table_comes_in(tmp_path):
    text = "path,a,b,c\nx,1,0.5,\ny,,1,\nz,0,nan,"
    csv = write(tmp_path / "a.csv", text)
    ways = [ImageList.from_csv(csv, label=["a", "b", "c"])]
    columns = {"path": ["x", "y", "z"], "a": [1, None, 0], "b": [0.5, 1, None], "c": [None] * 3}
    for name in ("pandas", "polars"):
        try:
            frame = __import__(name).DataFrame(columns)
        except ImportError:
            continue
        ways.append(ImageList.from_frame(frame, label=["a", "b", "c"]))
    nan = float("nan")
    rows = [[1, 0.5, nan], [nan, 1, nan], [0, nan, nan]]
    ways.append(ImageList(["x", "y", "z"], np.array(rows)))
    ways.append(ImageList(["x", "y", "z"], rows))
    ways.append(ImageList(["x", "y", "z"], [[1, 0.5, None], [None, 1, None], [0, None, None]]))
    for data in ways:
        assert data.targets.dtype == np.float32
        assert np.array_equal(data.targets, rows, equal_nan=True)


@pytest.mark.parametrize("cell", ["", "nan"])
def test_gaps_among_single_numbers_warn(tmp_path, cell):
    csv = write(tmp_path / "a.csv", f"path,label\nx,0.5\ny,{cell}")
    with pytest.warns(UserWarning, match="1 of 2 labels are NaN; sample 1"):
        data = ImageList.from_csv(csv)
    assert np.array_equal(data.targets, [0.5, np.nan], equal_nan=True)
    with pytest.warns(UserWarning, match="1 of 2 labels are NaN; sample 0"):
        ImageList(["x", "y"], np.array([np.nan, 1]))


@pytest.mark.parametrize("cell", ["NA", "NaN"])
def test_class_names_that_pandas_reads_as_missing_need_classes(tmp_path, cell):
    csv = write(tmp_path / "a.csv", f"path,label\nx,cat\ny,{cell}")
    with pytest.raises(UsageError, match=f"sample 1 has the label '{cell}'.*classes="):
        ImageList.from_csv(csv)
    data = ImageList.from_csv(csv, classes=["cat", cell])
    assert (data.classes, data.targets.tolist()) == (["cat", cell], [0, 1])
    if cell != "NaN":
        assert ImageList(["x", "y"], ["cat", cell]).classes == sorted(["cat", cell])


def test_compressed_csv_is_read(tmp_path):
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b'path,label\r\nx,"a\nb"\r\ny,c\r\n'))
    assert ImageList.from_csv(packed).classes == ["a\nb", "c"]
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(DatasetError, match="cannot be read"):
        ImageList.from_csv(packed)


# ------------------------------------------------------------------- several classes per image


def test_separator_makes_rows_of_zeros_and_ones(jpeg_folder, tmp_path):
    csv = write(tmp_path / "a.csv", "path,label\na,x y\nb,\nc,y | z\nd, y  y\n".replace("|", " "))
    data = ImageList.from_csv(csv, separator=" ")
    rows = [[1, 1, 0], [0, 0, 0], [0, 1, 1], [0, 1, 0]]
    assert (data.classes, data.targets.tolist()) == (["x", "y", "z"], rows)
    assert data.fields(8)[1] == Field("label", "float32", (3,))
    classes = ["z", "y", "w", "x"]
    wider = ImageList.from_csv(csv, separator=" ", classes=classes)
    assert (wider.classes, wider.targets[0].tolist()) == (classes, [0, 1, 0, 1])
    labels = ["1|2", "2", *[""] * 10]
    numbers = listed(jpeg_folder, labels, separator="|")
    assert (numbers.classes, numbers.targets[:2].tolist()) == (["1", "2"], [[1, 1], [0, 1]])
    cells = write(tmp_path / "b.csv", "path,label\na,1\nb,2")
    assert ImageList.from_csv(cells, separator=" ").classes == ["1", "2"]


def test_separator_in_frames_and_parquet_files(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for labels in (["b a", "a"], pandas.Categorical(["b a", "a"])):
        frame = pandas.DataFrame({"path": ["x", "y"], "label": labels})
        frame.to_parquet(tmp_path / "a.parquet")
        for data in (
            ImageList.from_frame(frame, separator=" "),
            ImageList.from_parquet(tmp_path / "a.parquet", separator=" "),
        ):
            assert (data.classes, data.targets.tolist()) == (["a", "b"], [[1, 1], [1, 0]])


def test_names_that_seem_to_hold_several_classes_warn(jpeg_folder):
    for separator in " |;,":
        with pytest.warns(UserWarning, match=rf"separator='\{separator}'"):
            listed(jpeg_folder, [f"x{separator}y", "x", *["y"] * 10])
    listed(jpeg_folder, ["hot dog", "hot", *["cat"] * 10])  # no warning, which would be an error


# ------------------------------------------------------------------- files with the images


def test_parquet_file_with_images_names_from_hf(jpeg_folder, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    data = (jpeg_folder / NAMES[0]).read_bytes()
    for cell, options in (({"bytes": data, "path": "a.jpg"}, {"image": "image"}), (data, {})):
        parquet.write_table(
            pyarrow.table({"image": [cell], "label": [0]}), tmp_path / "train.parquet"
        )
        with pytest.raises(UsageError, match="'image'") as caught:
            ImageList.from_parquet(tmp_path / "train.parquet", **options)
        assert "ImageList.from_hf" in caught.value.advice
