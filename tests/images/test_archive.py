"""Image folders in zip and tar files, and shards of a WebDataset, read in place."""

import itertools
import os
import pickle
import random
import shutil
import struct
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from feedline import DataLoader, EvalCrop, ImageFolder, ImageList
from feedline.errors import DatasetError, FeedlineError, ImageError, UsageError
from feedline.sources import archives
from row_of import row
from tars import write_tar

pytestmark = pytest.mark.usefixtures("own_caches")

NAMES = ["cats/1.jpg", "cats/a-b/2.jpg", "cats/a/3.JPG", "cats/a/4.jpg", "dogs/5.jpg", "dogs/6.jpg"]


@pytest.fixture
def pets(jpeg_folder, tmp_path):
    """The folder that archives are made of: images and other files."""
    root = tmp_path / "pets"
    files = sorted(jpeg_folder.glob("*/*.jpg"))
    for name, file in zip(NAMES, files, strict=False):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, root / name)
    (root / "cats/notes.txt").write_text("no image")
    (root / "about.txt").write_text("no image")
    return root


def stored(root, path, **options):
    return zipped(root, path, zipfile.ZIP_STORED, **options)


def zipped(root, path, method=zipfile.ZIP_DEFLATED, below=""):
    files = [file for file in root.rglob("*") if file.is_file()]
    random.Random(1).shuffle(files)
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in files:
            archive.write(file, below + str(file.relative_to(root)))
    return path


def tarred(root, path, below="./"):
    with tarfile.open(path, "w") as archive:
        archive.add(root, below)
    return path


def sharded(root, path):
    members = [
        (f"{file.relative_to(root).with_suffix('')}.{ending}", data)
        for file in sorted(root.rglob("*.[jJ]*"))
        for ending, data in (("jpg", file.read_bytes()), ("cls", b"1"))
    ]
    return write_tar(path, members)


PACKED = {"stored.zip": stored, "deflated.ZIP": zipped, "plain.tar": tarred}
ALL = {**PACKED, "shard.tar": sharded}


def opened(path):
    return ImageList.from_webdataset(path) if path.name == "shard.tar" else ImageFolder(path)


@pytest.mark.parametrize("kind", PACKED)
def test_archive_equals_its_folder(pets, tmp_path, kind):
    path = PACKED[kind](pets, tmp_path / kind)
    before = sorted(path.parent.rglob("*"))
    ours, folder = ImageFolder(path, EvalCrop()), ImageFolder(pets, EvalCrop())
    assert ours.fingerprint() == folder.fingerprint()
    assert ours.transform_identity() == folder.transform_identity()
    for again in (ours, pickle.loads(pickle.dumps(ours)), ImageFolder(path, EvalCrop())):
        for sample in range(6):
            assert again.name(sample) == folder.name(sample).replace(str(pets), str(path))
            assert np.array_equal(row(again, sample)[0], row(folder, sample)[0])
    new = [each for each in sorted(path.parent.rglob("*")) if each not in before]
    assert [each.suffix for each in new] == [".feedline"], "nothing is extracted"


@pytest.mark.parametrize("kind", ["a.zip", "a.tar"])
def test_archived_folder_has_same_names(pets, tmp_path, kind):
    pack = stored if kind == "a.zip" else tarred
    path = pack(pets, tmp_path / kind, below="all/train/")
    ours = ImageFolder(path / "all" / "train")
    assert ours.fingerprint() == ImageFolder(pets).fingerprint()
    assert ours.name(0) == f"{path}/all/train/cats/1.jpg"
    with pytest.raises(
        DatasetError, match=rf"(?s)contains one folder, 'all'.*\(train\).* use '{path}/all'"
    ):
        ImageFolder(path)
    with pytest.raises(DatasetError, match="has no class folders"):
        ImageFolder(path / "none")


def test_other_extensions_are_other_samples(pets, tmp_path):
    path = stored(pets, tmp_path / "a.zip")
    assert len(ImageFolder(path)) == 6
    with pytest.raises(DatasetError, match=r"without images, 1 of 2: 'dogs'.*ending in \.txt"):
        ImageFolder(path, extensions=[".txt"])
    assert len(ImageFolder(path)) == 6


def test_macos_metadata_is_ignored(pets, tmp_path):
    path = stored(pets, tmp_path / "a.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/cats/._1.jpg", b"resources")
    assert ImageFolder(path).fingerprint() == ImageFolder(pets).fingerprint()


@pytest.mark.parametrize("kind", ["a.zip", "a.tar"])
def test_later_of_duplicate_names_is_used(pets, tmp_path, kind):
    path = (stored if kind == "a.zip" else tarred)(pets, tmp_path / kind)
    if kind == "a.zip":
        with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.write(pets / "dogs/6.jpg", "dogs/5.jpg")
    else:
        with tarfile.open(path, "a") as archive:
            archive.add(pets / "dogs/6.jpg", "dogs/5.jpg")
    data = ImageFolder(path)
    assert len(data) == 6
    assert data.store.read(4, 1) == data.store.read(5, 1)


# ------------------------------------------------------------------- retained state


def test_archive_is_scanned_once(pets, tmp_path, monkeypatch):
    path = stored(pets, tmp_path / "a.zip")
    times = []
    scan = archives._scan
    monkeypatch.setattr(archives, "_scan", lambda *given: times.append(1) or scan(*given))
    first = ImageFolder(path).fingerprint()
    assert ImageFolder(path).fingerprint() == first
    assert len(times) == 1
    (kept,) = tmp_path.glob(".a.zip.*.feedline")
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-30], b"\x80\x04" + whole[2:], whole.replace(b"cats", b"cows")):
        kept.write_bytes(damaged)
        assert ImageFolder(path).fingerprint() == first
    assert len(times) == 5
    kept.write_bytes(whole)
    os.utime(path, ns=(1, 1))
    assert ImageFolder(path).fingerprint() == first
    assert len(times) == 6


def _changed_entries(columns, rows, to):
    entries = columns["entries"].copy()
    entries[rows] = to
    return entries


def _replaced(name, old, new):
    return lambda columns: np.frombuffer(columns[name].tobytes().replace(old, new), np.uint8)


def _moved(name):
    return lambda columns: columns[name][::-1] + columns[name].dtype.type(1)


IMPOSSIBLE = {
    "missing": ("labels", lambda columns: None),
    "another dtype": ("entries", lambda columns: columns["entries"].astype(np.float64)),
    "short": ("entries", lambda columns: columns["entries"][:-1]),
    "other labels": ("labels", lambda columns: columns["labels"][::-1].copy()),
    "an unknown class": ("labels", lambda columns: columns["labels"] + np.int32(7)),
    "beyond the end": ("entries", lambda columns: _changed_entries(columns, np.s_[:, 0], 1 << 62)),
    "negative": ("entries", lambda columns: _changed_entries(columns, np.s_[2, :2], -1)),
    "outside": ("blob", _replaced("blob", b"cats/a/3", b"cats/../")),
    "no ends of names": ("blob", lambda columns: np.full_like(columns["blob"], ord("a"))),
    "no names of classes": ("about", _replaced("about", b'["cats", "dogs"]', b"[1, 2]")),
}
IMPOSSIBLE_SHARD = {
    "other names": ("names", _moved("names")),
    "other places": ("places", _moved("places")),
    "fewer labels": ("about", _replaced("about", b', "1"]', b"]")),
}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *itertools.product(["deflated.ZIP", "plain.tar"], IMPOSSIBLE),
        *itertools.product(["shard.tar"], IMPOSSIBLE_SHARD),
    ],
)
def test_impossible_index_is_replaced(pets, tmp_path, kind, change):
    path = ALL[kind](pets, tmp_path / kind)
    expected = opened(path)
    (saved,) = tmp_path.glob(".*.feedline")
    before = saved.read_bytes()
    columns = dict(np.load(saved))
    column, value = (IMPOSSIBLE | IMPOSSIBLE_SHARD)[change]
    columns[column] = value(columns)
    columns = {name: values for name, values in columns.items() if values is not None}
    with saved.open("wb") as file:
        np.savez(file, **columns)
    assert saved.read_bytes() != before
    data = opened(path)
    assert data.fingerprint() == expected.fingerprint()
    assert data.targets.tolist() == expected.targets.tolist()
    for sample in range(len(data)):
        assert data.store.read(sample, 16) == expected.store.read(sample, 16)
    assert saved.read_bytes() == before


def test_large_index_is_not_inflated(pets, tmp_path):
    path = stored(pets, tmp_path / "a.zip")
    expected = ImageFolder(path)
    (saved,) = tmp_path.glob(".*.feedline")
    columns = dict(np.load(saved))
    with saved.open("wb") as file:
        np.savez_compressed(file, **columns, more=np.zeros(1 << 26, np.uint8))
    tracemalloc.start()
    try:
        assert ImageFolder(path).fingerprint() == expected.fingerprint()
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_user_cache_is_used_if_folder_is_not_writable(pets, tmp_path, monkeypatch):
    path = stored(pets, tmp_path / "a.zip")
    write = archives._write_index
    monkeypatch.setattr(
        archives, "_write_index", lambda place, *rest: "caches" in place and write(place, *rest)
    )
    first = ImageFolder(path).fingerprint()
    assert len(list((tmp_path / "caches/feedline/archives").iterdir())) == 1
    monkeypatch.setattr(archives, "_scan", None)
    assert ImageFolder(path).fingerprint() == first


@pytest.mark.parametrize("kind", ALL)
def test_an_archive_that_is_changed_later_is_noticed(pets, tmp_path, kind):
    path = ALL[kind](pets, tmp_path / kind)
    data = opened(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ImageError, match=r"sample 0, .*cats/1\.jpg, .*(archive|shard) has changed"):
        row(data, 0)
    data = opened(path)
    row(data, 0)
    path.unlink()
    with pytest.raises(ImageError, match=r"its (archive|shard) cannot be opened: No such file"):
        row(pickle.loads(pickle.dumps(data)), 0)


# ------------------------------------------------------------------- invalid input


def test_invalid_archives_and_archives_at_urls_are_rejected(pets, tmp_path):
    for name in ("text.zip", "text.tar", "empty.zip"):
        (tmp_path / name).write_bytes(b"no archive at all" * 99 if "text" in name else b"")
        with pytest.raises(DatasetError, match=r"not a zip file|not a tar file"):
            ImageFolder(tmp_path / name)
    with tarfile.open(tmp_path / "a.tar", "w:gz") as archive:
        archive.add(pets, "")
    with pytest.raises(DatasetError, match="is compressed by gzip"):
        ImageFolder(tmp_path / "a.tar")
    shutil.copy(tmp_path / "a.tar", tmp_path / "a.tar.gz")
    with pytest.raises(DatasetError, match=r"got a file: .*must be unpacked"):
        ImageFolder(tmp_path / "a.tar.gz")
    for url in ("http://127.0.0.1:1/a.zip", "s3://bucket/a.tar"):
        with pytest.raises(UsageError, match=r"(?s)archives must be local.*download it"):
            ImageFolder(url)


def tar_header(kind, size):
    """A header whose length is written as an 11-byte number, which may be negative."""
    info = tarfile.TarInfo("cats/1.jpg")
    info.type = kind
    head = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    head[124:136] = (b"\x80" if size >= 0 else b"\xff") + (size % (1 << 88)).to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)


@pytest.mark.parametrize("size", [-512, -(10**15), 10**12, 1 << 60, 1 << 80])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_wrong_lengths_cost_no_memory_or_time(pets, tmp_path, kind, size):
    path = tarred(pets, tmp_path / "a.tar")
    path.write_bytes(tar_header(kind, size) + path.read_bytes())
    with pytest.raises(DatasetError, match=r"truncated|header claims -?\d+ bytes"):
        ImageFolder(path)


OUTSIDE = ["/cats/1.jpg", "../cats/1.jpg", "cats/../1.jpg", "c:/a/1.jpg", "a\\b.jpg"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("kind", ["a.zip", "a.tar", "shard.tar"])
def test_names_outside_of_archive_are_rejected(pets, tmp_path, kind, name):
    path = tmp_path / kind
    if kind == "a.zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("dogs/1.jpg", b"")
            archive.writestr(zipfile.ZipInfo(name), b"")
    else:
        write_tar(path, {name: b""})
    with pytest.raises(DatasetError, match=r"which is absolute, or has '\.\.'"):
        opened(path)


def test_links_and_sparse_files_are_rejected(pets, tmp_path):
    os.link(pets / "cats/1.jpg", pets / "cats/9.jpg")
    with pytest.raises(DatasetError, match=r"(?s)'\./cats/.\.jpg' as a link.*--hard-dereference"):
        ImageFolder(tarred(pets, tmp_path / "a.tar"))


def test_encrypted_and_unsupported_compression_is_rejected(pets, tmp_path):
    path = stored(pets, tmp_path / "a.zip")
    whole = path.read_bytes()
    at = whole.index(b"PK\1\2")
    while not whole[at + 46 :].startswith(b"dogs/5.jpg"):
        at = whole.index(b"PK\1\2", at + 1)
    for place, value, said in ((8, 1, "encrypted"), (10, 12, "compressed by method 12")):
        changed = bytearray(whole)
        struct.pack_into("<H", changed, at + place, value)
        path.write_bytes(changed)
        with pytest.raises(DatasetError, match=rf"'dogs/5\.jpg' {said}"):
            ImageFolder(path)


@pytest.mark.parametrize("kind", ALL)
def test_archive_that_is_cut_off_anywhere_is_rejected(pets, tmp_path, kind):
    path = ALL[kind](pets, tmp_path / kind)
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0") if kind.endswith("tar") else whole)
    blocks = range(0, end, 512) if kind == "shard.tar" else ()
    for length in (*range(1, end, max(1, end // 40)), *blocks):
        path.write_bytes(whole[:length])
        with pytest.raises(DatasetError, match=kind):
            opened(path)


@pytest.mark.parametrize("kind", ALL)
def test_damage_gives_image_or_error(pets, tmp_path, kind):
    path = ALL[kind](pets, tmp_path / kind)
    whole = path.read_bytes()
    wanted = {file.read_bytes() for file in pets.rglob("*") if file.is_file()}
    draws = random.Random(5)
    errors = 0
    for _ in range(200):
        changed = bytearray(whole)
        # Most of a zip file's own structure lies at its end.
        start = len(whole) - 900 if draws.random() < 0.5 else 0
        for _ in range(draws.randint(1, 3)):
            changed[draws.randrange(start, len(whole))] = draws.randrange(256)
        path.write_bytes(changed)
        os.utime(path, ns=(draws.randrange(10**18),) * 2)
        try:
            data = opened(path)
            for sample in range(len(data)):
                read = data.store.read(sample, 1)
                assert kind.endswith("tar") or read in wanted
        except FeedlineError as error:
            errors += 1
            assert kind in str(error) or isinstance(error, ImageError)  # noqa: PT017
    assert errors > (0 if kind.endswith("tar") else 60)


def test_a_size_of_64_bits_that_no_file_has_is_damage(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cats/1.jpg", bytes(1000))
    whole = bytearray(path.read_bytes())
    at, end = whole.index(b"PK\1\2"), whole.index(b"PK\5\6")
    struct.pack_into("<L", whole, at + 24, 0xFFFFFFFF)
    struct.pack_into("<H", whole, at + 30, 12)
    struct.pack_into("<L", whole, end + 12, end - at + 12)
    whole[end:end] = struct.pack("<HHQ", 1, 8, 1 << 63)
    path.write_bytes(whole)
    with pytest.raises(DatasetError, match=rf"'cats/1\.jpg' would have {1 << 63} bytes"):
        ImageFolder(path)


def test_wrong_file_size_costs_no_memory(tmp_path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cats/1.jpg", bytes(50_000_000))
    whole = bytearray(path.read_bytes())
    at = whole.index(b"PK\1\2")
    struct.pack_into("<L", whole, at + 24, 1000)
    path.write_bytes(whole)
    data = ImageFolder(path)
    with pytest.raises(ImageError, match=r"size mismatch: .* 1000 bytes"):
        data.store.read(0, 1)
    struct.pack_into("<L", whole, at + 24, 0xFFFFFFF0)
    path.write_bytes(whole)
    os.utime(path, ns=(7, 7))
    with pytest.raises(ImageError, match="above the limit"):
        ImageFolder(path).store.read(0, 1)


def test_the_64_bit_form_is_read(pets, tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)
    path = stored(pets, tmp_path / "a.zip")
    assert b"PK\6\6" in path.read_bytes()
    data = ImageFolder(path)
    assert data.fingerprint() == ImageFolder(pets).fingerprint()
    assert data.store.read(0, 1) == (pets / "cats/1.jpg").read_bytes()


def test_long_names_and_comments_are_read(pets, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_USUAL_NAMES", 2)
    path = stored(pets, tmp_path / "a.zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"a comment" * 9
        name = "dogs/" + "long" * 50 + ".jpg"
        archive.write(pets / "cats/1.jpg", name)
    data = ImageFolder(path)
    assert data.store.read(6, 1) == (pets / "cats/1.jpg").read_bytes()
    assert data.name(6).endswith(name)


def test_operations_on_files_reject_archives(pets, tmp_path):
    data = ImageFolder(stored(pets, tmp_path / "a.zip"))
    with pytest.raises(UsageError, match=r"is an archive.*unpack it"):
        data.path(0)
    with (
        pytest.raises(UsageError, match="is an archive"),
        DataLoader(data, 2, image_size=16, cache=tmp_path / "cache") as loader,
    ):
        next(iter(loader))
