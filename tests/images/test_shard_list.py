"""Image lists in WebDataset tar shards, read in place."""

import gzip
import json
import os

import pytest

from feedline import DataLoader, ImageList, build_cache
from feedline.errors import DatasetError, UsageError
from feedline.order.batch_spec import Field
from feedline.sources import webdataset
from feedline.sources.webdataset import expand_shards
from tars import write_tar

pytestmark = pytest.mark.usefixtures("own_caches")


def samples(images, first, count, **more):
    """Samples with an image, a class number, its name, and JSON."""
    files = {}
    for number in range(first, first + count):
        label = number // 6
        files[f"{number:04d}.jpg"] = images[number]
        files[f"{number:04d}.cls"] = b"%d\n" % label
        files[f"{number:04d}.txt"] = [b"cats", b"dogs"][label]
        about = {"label": label, "about": {"score": number / 8, "kind": "dogs"}, "box": [1, 2.5]}
        files[f"{number:04d}.json"] = json.dumps(about).encode()
    return files


@pytest.fixture
def shards(tmp_path, images):
    """Three shards of four samples each."""
    root = tmp_path / "shards"
    root.mkdir()
    for number in range(3):
        write_tar(root / f"train-{number:03d}.tar", samples(images, 4 * number, 4))
    return root / "train-{000..002}.tar"


def test_a_sample_has_the_name_of_its_shard_and_image(shards):
    data = ImageList.from_webdataset(shards)
    assert (len(data), data.classes, data.skipped_samples) == (12, [], ())
    for sample in range(12):
        assert data.name(sample) == f"{shards.parent}/train-00{sample // 4}.tar/{sample:04d}.jpg"


@pytest.mark.parametrize(
    ("label", "field", "value", "classes"),
    [
        ("cls", Field("label", "int64", ()), 1, []),
        ("txt", Field("label", "int64", ()), 1, ["cats", "dogs"]),
        ("json:label", Field("label", "int64", ()), 1, []),
        ("json:about.score", Field("label", "float32", ()), 1.375, []),
        ("json:about.kind", Field("label", "int64", ()), 0, ["dogs"]),
        ("json:box", Field("label", "float32", (2,)), [1, 2.5], []),
        ("none;json:label", Field("label", "int64", ()), 1, []),
        (None, Field("label", "int64", ()), 0, []),
    ],
)
def test_labels_of_every_kind(shards, label, field, value, classes):
    data = ImageList.from_webdataset(shards, label=label)
    assert data.fields(16)[1] == field
    assert data.targets[11].tolist() == value
    assert data.classes == classes


def test_classes_may_be_given(shards):
    data = ImageList.from_webdataset(shards, label="txt", classes=["dogs", "owls", "cats"])
    assert data.targets[[0, 11]].tolist() == [2, 0]


def test_samples_equal_those_of_webdataset(tmp_path, images):
    reading = pytest.importorskip("webdataset").tariterators
    files = {
        "__meta__/a.json": b"{}",
        "no-ending": b"",
        "._1.jpg": b"of another system",
        "./x/1.JPG": images[0],
        "./x/1.seg.png": images[1],
        "./x/1.cls": b" 7\n",
        "x.y/2.a.b.jpg": images[2],
        "x.y/2.jpeg": images[3],
        "x.y/2.cls": b"8",
    }
    path = write_tar(tmp_path / "a.tar", files)
    with open(path, "rb") as stream:
        opened = reading.tar_file_expander([{"url": str(path), "stream": stream}])
        theirs = list(reading.group_by_keys(opened))
    data = ImageList.from_webdataset(path, image="jpg;a.b.jpg")
    assert len(data) == len(theirs) == 2
    for sample, their in enumerate(theirs):
        assert data.store.read(sample, 1) == their.get("jpg", their.get("a.b.jpg"))
        assert data.targets[sample] == int(their["cls"])
    assert ImageList.from_webdataset(path).store.read(1, 1) == images[3]


def test_shards_with_equal_names_have_no_cache(shards, tmp_path):
    data = ImageList.from_webdataset(shards, label="txt")
    twice = ImageList.from_webdataset([shards, shards])
    assert len(twice) == 24
    with pytest.raises(UsageError, match="24 samples have 12 names"):
        build_cache(twice, tmp_path / "twice", (24,), workers=1)
    with (
        pytest.raises(UsageError, match=r"tar shards in .*remove cache="),
        DataLoader(data, 2, image_size=16, cache=tmp_path / "other") as loader,
    ):
        next(iter(loader))


# ------------------------------------------------------------------- retained state


def test_shard_is_scanned_once(shards, monkeypatch):
    times = []
    scan = webdataset._scan_shard

    def counted(file, size, path, *rest):
        times.append(os.path.basename(path))
        return scan(file, size, path, *rest)

    monkeypatch.setattr(webdataset, "_scan_shard", counted)
    first = ImageList.from_webdataset(shards, label="txt")
    again = ImageList.from_webdataset(shards, label="txt")
    assert len(times) == 3
    assert again.fingerprint() == first.fingerprint()
    assert again.targets.tolist() == first.targets.tolist()
    assert ImageList.from_webdataset(shards).classes == []  # another label
    assert len(times) == 6
    for kept in shards.parent.glob(".train-001.tar.*.feedline"):
        kept.write_bytes(kept.read_bytes()[:-40])
    os.utime(shards.parent / "train-002.tar", ns=(1, 1))
    assert ImageList.from_webdataset(shards, label="txt").fingerprint() == first.fingerprint()
    assert times[6:] == ["train-001.tar", "train-002.tar"]


# ------------------------------------------------------------------- invalid input


def test_incomplete_samples_raise_or_are_listed(tmp_path, images):
    files = samples(images, 0, 4)
    del files["0001.jpg"]
    del files["0002.cls"]
    files["0003.cls"] = b""
    path = write_tar(tmp_path / "a.tar", files)
    with pytest.raises(
        DatasetError, match=r'(?s)3 of 4 .*a\.tar/0001\'.* no image.*incomplete="skip"'
    ):
        ImageList.from_webdataset(path)
    data = ImageList.from_webdataset(path, incomplete="skip")
    assert (len(data), data.name(0)) == (1, f"{path}/0000.jpg")
    assert [name for name, _ in data.skipped_samples] == [f"{path}/000{k}" for k in (1, 2, 3)]
    lacks = ("no image", "no label: there is only", "in its .cls is empty")
    assert all(text in why for text, (_, why) in zip(lacks, data.skipped_samples, strict=True))
    with pytest.raises(
        DatasetError, match=r"its \.json has none: there is no field 'labels'; there are"
    ):
        ImageList.from_webdataset(path, label="json:labels", incomplete="skip", image="txt")
    with pytest.raises(UsageError, match="a class of each whole JSON text"):
        ImageList.from_webdataset(path, label="cls;json")
    with pytest.raises(DatasetError, match="4 of 4 samples are incomplete"):
        ImageList.from_webdataset(path, image="gif", incomplete="skip")


def resized(data, size):
    """The first header says that its file has another length, with a checksum that fits."""
    head = bytearray(data[:512])
    head[124:136] = b"%011o\0" % size
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: resized(data, 0o77777777777), "truncated: .* before the end of"),
        (lambda data: resized(data, 100), "is truncated or damaged at byte"),
        (lambda data: b"", "is damaged, or not a tar file"),
        (lambda data: bytes(10240), "contains no samples"),
        (gzip.compress, "is compressed by gzip"),
        (lambda data: b"\xfd7zXZ\0" + data, "is compressed by xz"),
        (lambda data: b"no tar" * 400, "is damaged, or not a tar file"),
        (lambda data: data.replace(b"0004.cls", b"0004.clx", 1), "truncated or damaged at byte"),
    ],
)
def test_damaged_shard_raises_instead_of_being_shortened(shards, damage, said):
    path = shards.parent / "train-001.tar"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DatasetError, match=rf"train-001\.tar' .*({said})"):
        ImageList.from_webdataset(shards)


def test_duplicate_keys_raise(tmp_path, images):
    path = tmp_path / "a.tar"
    names = ("1.jpg", "1.cls", "2.jpg", "2.cls", "1.jpg", "1.cls")
    write_tar(path, [(name, images[0] if name.endswith("jpg") else b"1") for name in names])
    with pytest.raises(DatasetError, match="the key '1' twice, with other keys between"):
        ImageList.from_webdataset(path)
    write_tar(path, [(name, b"") for name in ("1.jpg", "1.cls", "1.jpg", "1.cls")])
    with pytest.raises(DatasetError, match=r"has '1\.jpg' twice"):
        ImageList.from_webdataset(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label": "json:"}, "label must be the extension of a text file"),
        ({"label": 7}, "label must be the extension of a text file"),
        ({"image": ""}, "image must be file extensions"),
        ({"incomplete": "ignore"}, 'incomplete must be "raise" or "skip"'),
    ],
)
def test_invalid_arguments(shards, options, said):
    with pytest.raises(UsageError, match=said):
        ImageList.from_webdataset(shards, **options)


def test_invalid_label_names_sample(tmp_path, images):
    files = samples(images, 0, 3)
    files["0001.cls"] = b"cats"
    with pytest.raises(UsageError, match=r"labels of mixed types: 'cats' of sample 1"):
        ImageList.from_webdataset(write_tar(tmp_path / "a.tar", files))
    files["0001.json"] = b'{"label": {"a": 1}}'
    with pytest.raises(UsageError, match=r"sample 1, 'a\.tar/0001\.jpg', has the label \{'a': 1\}"):
        ImageList.from_webdataset(write_tar(tmp_path / "a.tar", files), label="json:label")
    files = {"0.jpg": images[0], "0.json": b'{"y": 7}'}
    files |= {"1.jpg": images[0], "1.cls": b"1", "2.jpg": images[0], "2.cls": b"x"}
    with pytest.raises(UsageError, match=r"'x' of sample 2, 'a.tar/2.jpg', is not a number"):
        ImageList.from_webdataset(write_tar(tmp_path / "a.tar", files), label="cls;json:y")


def test_an_index_is_not_taken_for_that_of_another_shard_with_its_name_size_and_time(
    tmp_path, images
):
    for name, label in (("a", b"1"), ("b", b"2")):
        write_tar(tmp_path / f"{name}.tar", {"0.cls": label, "0.jpg": images[0]})
        os.utime(tmp_path / f"{name}.tar", ns=(7, 7))
    assert ImageList.from_webdataset(tmp_path / "a.tar").targets.tolist() == [1]
    os.replace(tmp_path / "b.tar", tmp_path / "a.tar")
    assert ImageList.from_webdataset(tmp_path / "a.tar").targets.tolist() == [2]


@pytest.fixture
def folder(tmp_path):
    for name in ("a-0.tar", "a-1.tar", "b-0.tar", "odd{1}.tar"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "below").mkdir()
    return tmp_path


def test_paths_are_filled_in_in_their_order(folder, monkeypatch):
    def names(given):
        return [os.path.relpath(path, folder) for path in expand_shards(given)]

    assert names(folder / "a-{1..0}.tar") == ["a-1.tar", "a-0.tar"]
    assert names(str(folder / "?-*.tar")) == ["a-0.tar", "a-1.tar", "b-0.tar"]
    assert names(str(folder / "{b,a}-*.tar")) == ["b-0.tar", "a-0.tar", "a-1.tar"]
    assert names([folder / "b-0.tar", folder / "a-0.tar"]) == ["b-0.tar", "a-0.tar"]
    assert names(folder / "odd{1}.tar") == ["odd{1}.tar"]
    monkeypatch.chdir(folder)
    assert names("a-0.tar") == ["a-0.tar"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{0..3.tar", "unmatched brace"),
        ("a-{0..4}.tar", r"3 of 5 shards are missing or not files: '.*a-2\.tar'"),
        ("z*.tar", "no files match"),
        ("below", r"(?s)1 of 1 shards .* for all shards in a folder use '.*below/\*\.tar'"),
        ("s3://bucket/a.tar", "download them, or make smaller copies"),
        ("pipe:curl -s a.tar", "download them, or make smaller copies"),
        ([], "list of shards is empty"),
        (7, "shards must be a path, or a list of paths, got 7"),
    ],
)
def test_invalid_shard_raises_with_hint(folder, monkeypatch, given, said):
    monkeypatch.chdir(folder)
    with pytest.raises((DatasetError, UsageError), match=said):
        expand_shards(given)
