"""Lists of images in LMDBs that others have written."""

import os
import pickle
import struct

import numpy as np
import pytest

from feedline import DataLoader, ImageList
from feedline.errors import DatasetError, ImageError, UsageError
from row_of import row

lmdb = pytest.importorskip("lmdb")


def written(path, entries, **options):
    environment = lmdb.open(str(path), map_size=1 << 24, **options)
    with environment.begin(write=True) as writing:
        for key, value in entries.items():
            writing.put(key, value)
    environment.close()
    lock = path / "lock.mdb" if path.is_dir() else path.with_name(f"{path.name}-lock")
    lock.unlink()
    return path


@pytest.fixture
def numbered(tmp_path, images):
    """Layout of text recognition datasets: images and texts numbered from 1."""
    entries = {b"image-%09d" % k: image for k, image in enumerate(images, 1)}
    entries |= {b"label-%09d" % k: [b"cat", b"dog"][k > 6] for k in range(1, 13)}
    return written(tmp_path / "numbered", entries | {b"num-samples": b"12"})


@pytest.fixture
def keyed(tmp_path, images):
    """Layout of LSUN: images with random keys."""
    entries = {f"{k * 7919:08x}".encode(): image for k, image in enumerate(images)}
    return written(tmp_path / "keyed", entries)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals")
@pytest.mark.parametrize("options", [{}, {"keys": ["00000000"]}, {"keys": "image-%09d"}])
def test_process_that_ends_while_it_reads_is_an_error(keyed, tmp_path, monkeypatch, options):
    # A module that ends the process at a read, as a damaged page does.
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "lmdb.py").write_text(
        "import os, signal\n"
        "class Error(Exception): pass\n"
        "class Environment:\n"
        "    def begin(self, **options): return self\n"
        "    def info(self): return {'last_pgno': 0}\n"
        "    def stat(self): return {'psize': 1}\n"
        "    def cursor(self): os.kill(os.getpid(), signal.SIGBUS)\n"
        "    def get(self, key): os.kill(os.getpid(), signal.SIGBUS)\n"
        "def open(*arguments, **options): return Environment()\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "modules")
    with pytest.raises(DatasetError, match="SIGBUS"):
        ImageList.from_lmdb(keyed, labels=None, **options)


def test_a_sample_has_the_name_of_its_key_and_nothing_is_written(numbered):
    data = ImageList.from_lmdb(numbered, "image-%09d", "label-%09d")
    row(data, 0)
    assert (data.classes, data.targets.tolist()) == (["cat", "dog"], [0] * 6 + [1] * 6)
    assert data.name(0) == f"{numbered}/image-000000001"
    assert os.listdir(numbered) == ["data.mdb"]


def test_all_keys_are_used_in_their_order(keyed, images):
    data = ImageList.from_lmdb(keyed)
    assert [data.store.read(sample, 1) for sample in range(12)] == images
    assert data.targets.tolist() == [0] * 12
    with pytest.raises(IndexError):
        data.store.read(12, 1)


def test_a_file_alone_and_keys_of_any_bytes(tmp_path, images):
    keys = [struct.pack("<I", number) for number in range(12)]
    path = written(tmp_path / "all.lmdb", dict(zip(keys, images, strict=True)), subdir=False)
    data = ImageList.from_lmdb(path, keys[::-1], np.arange(12) / 8)
    assert [data.store.read(sample, 1) for sample in range(12)] == images[::-1]
    assert data.targets.dtype == np.float32
    assert data.name(1) == f"{path}/\\n\\x00\\x00\\x00"
    assert os.listdir(tmp_path) == ["all.lmdb"]


def test_labels_by_a_function_of_the_key(tmp_path, images):
    entries = {f"{['owl', 'cat'][k % 2]}/{k:02d}".encode(): images[k] for k in range(4)}
    path = written(tmp_path / "a", entries)
    data = ImageList.from_lmdb(path, labels=lambda key: key.partition("/")[0])
    assert (data.targets.tolist(), data.classes) == ([0, 0, 1, 1], ["cat", "owl"])
    keys = ["owl/00", b"cat/03"]
    data = ImageList.from_lmdb(path, keys, ["a", "b"], classes=["b", "a"])
    assert data.targets.tolist() == [1, 0]


# ------------------------------------------------------------------- invalid input


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_are_not_unpickled(tmp_path, images, protocol):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    values = {b"%d" % k: pickle.dumps((image, k), protocol) for k, image in enumerate(images)}
    values[b"0"] = pickle.dumps(Trap(), protocol)
    path = written(tmp_path / "a", values)
    with pytest.raises(DatasetError, match=r"the entry '0' .*is a pickle, .*write an LMDB whose"):
        ImageList.from_lmdb(path)
    with pytest.raises(DatasetError, match="is a pickle"):
        ImageList.from_lmdb(path, "%d")
    assert not (tmp_path / "sprung").exists()


def test_non_image_values_are_named(tmp_path, images):
    entries = {b"%02d" % k: image for k, image in enumerate(images)}
    path = written(tmp_path / "a", entries | {b"__len__": b"\x0c", b"03": pickle.dumps(("x", 1))})
    with pytest.raises(DatasetError, match=r"(?s)'__len__' .*is not an image: .*keys="):
        ImageList.from_lmdb(path)
    data = ImageList.from_lmdb(path, "%02d")
    with pytest.raises(ImageError, match=r"sample 3, .*a/03, cannot be loaded: it is a pickle"):
        row(data, 3)
    with DataLoader(data, 12, image_size=16, on_error="skip") as loader:
        assert [len(labels) for _, labels in loader] == [11]
        assert [name for name, _ in loader.skipped] == [f"{path}/03"]


def delete(root, key):
    environment = lmdb.open(str(root), map_size=1 << 24)
    with environment.begin(write=True) as writing:
        writing.delete(key)
    environment.close()


def test_missing_keys_are_named(keyed, numbered):
    data = ImageList.from_lmdb(keyed, ["00000000", "nowhere"])
    with pytest.raises(ImageError, match=r"sample 1, .*/nowhere, .*the LMDB has no such entry"):
        row(data, 1)
    with pytest.raises(DatasetError, match=r"1 of 2 keys are not in the LMDB .*: 'nowhere'"):
        ImageList.from_lmdb(keyed, ["00000000", "nowhere"], check=True)
    with pytest.raises(DatasetError, match=r"has no entries of 'image-%09d'.*it has '00000000'"):
        ImageList.from_lmdb(keyed, "image-%09d")
    delete(numbered, b"label-000000004")
    with pytest.raises(UsageError, match="sample 3, 'image-000000004', has no label"):
        ImageList.from_lmdb(numbered, "image-%09d", "label-%09d")
    delete(numbered, b"image-000000005")
    with pytest.raises(DatasetError, match=r"has 11 entries of .* but not 'image-000000005'"):
        ImageList.from_lmdb(numbered, "image-%09d")


@pytest.mark.parametrize("label", [b"\xff", b"a" * 1024])
def test_entry_that_is_no_label_is_named(tmp_path, images, label):
    path = written(tmp_path / "a", {b"image-1": images[0], b"label-1": label})
    with pytest.raises(DatasetError, match=r"the entry 'label-1' of .* is not a label"):
        ImageList.from_lmdb(path, "image-%d", "label-%d")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"keys": "image"}, "keys 'image' is not a pattern"),
        ({"keys": 5}, "keys must be a sequence"),
        ({"keys": [5]}, "sample 0 has 5"),
        ({"keys": ["00000000", ""]}, "sample 1 has ''"),
        ({"keys": ["\ud800"]}, r"sample 0 has '.ud800'"),
        ({"keys": "%9999999999d"}, "is not a pattern"),
        ({"labels": "label-%09d"}, "must be a pattern with one number, .* needs keys="),
        ({"labels": [1, 2]}, "12 images but 2 labels"),
        ({"labels": lambda key: None}, "has no label"),
        ({"path": None}, "path must be the path of an LMDB"),
    ],
)
def test_arguments_that_cannot_be_used(keyed, given, said):
    with pytest.raises(UsageError, match=said):
        ImageList.from_lmdb(**{"path": keyed, **given})


def test_invalid_lmdb_raises(tmp_path, keyed):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.lmdb").write_bytes(b"no LMDB at all" * 1000)
    (tmp_path / "nothing.lmdb").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for name in ("text.lmdb", "nothing.lmdb", "pipe"):
        with pytest.raises(DatasetError, match=rf"{name}.*cannot be read.*not an LMDB"):
            ImageList.from_lmdb(tmp_path / name)
    for name in ("empty", "nowhere"):
        with pytest.raises(DatasetError, match=rf"(?s)no LMDB at .*{name}.*data.mdb"):
            ImageList.from_lmdb(tmp_path / name)
    written(tmp_path / "bare", {})
    with pytest.raises(DatasetError, match="has no entries"):
        ImageList.from_lmdb(tmp_path / "bare")
    data = (keyed / "data.mdb").read_bytes()
    (keyed / "data.mdb").write_bytes(data[: len(data) // 2])
    with pytest.raises(DatasetError, match="not copied completely"):
        ImageList.from_lmdb(keyed)


def test_lmdb_already_open_in_process_raises_with_hint(keyed):
    environment = lmdb.open(str(keyed), readonly=True, lock=False)
    try:
        with pytest.raises(DatasetError, match="close yours first"):
            ImageList.from_lmdb(keyed)
    finally:
        environment.close()
    assert len(ImageList.from_lmdb(keyed)) == 12
