"""Caches that were mixed up, cut, or made by another version: never a wrong image or label."""

import json
import os
import pickle

import numpy as np
import pytest

from caches import FORMATS, flip, flip_copy
from feedline import DataLoader, ImageFolder
from feedline.cache.damage import verify
from feedline.errors import DatasetError, ImageError
from feedline.sources.manifest import MANIFEST, digest_of
from row_of import row

pytest.importorskip("lmdb")


HARMS = {
    "a bit of a copy": lambda root: flip_copy(root, 0, 24),
    "cut": lambda root: os.truncate(root / "24" / "000000.tar", 20_000),
    "removed": lambda root: (root / "24" / "000000.tar").unlink(),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("harm", HARMS)
def test_damaged_copy_raises_with_repair_command_or_is_skipped(copied, harm, workers):
    root = copied()
    HARMS[harm](root)
    options = {"image_size": 20, "num_workers": workers, "shuffle": False}
    loader = DataLoader(ImageFolder(root), 8, **options)
    with loader, pytest.raises(ImageError) as raised:
        list(loader)
    _, *hints = str(raised.value).split("\n")
    assert hints == [f"hint: feedline cache repair {root}"]
    if harm == "a bit of a copy":  # a file that is damaged as a whole has no readable copies
        with DataLoader(ImageFolder(root), 8, on_error="skip", **options) as loader:
            assert sum(len(labels) for _, labels in loader) == 11
            assert [name for name, _ in loader.skipped] == ["cats/0.jpg"]


def test_index_of_another_cache_does_not_change_labels(copied):
    root = copied()
    labels = np.load(root / "index" / "labels.npy")
    np.save(root / "index" / "labels.npy", labels[::-1])
    data = ImageFolder(root)
    for sample in range(12):
        with pytest.raises(ImageError, match="checksum differs"):
            row(data, sample, 12)
    np.save(root / "index" / "labels.npy", labels[:-1])
    with pytest.raises(DatasetError, match="does not match its manifest"):
        ImageFolder(root)
    np.save(root / "index" / "labels.npy", np.array([object()] * 12), allow_pickle=True)
    with pytest.raises(DatasetError, match=r"does not match .*got object"):
        ImageFolder(root)


def test_wrong_sizes_raise_before_cropping(copied):
    root = copied()
    sizes = root / "index" / "sizes.npy"
    flip(sizes, sizes.stat().st_size - 1)
    with pytest.raises(DatasetError, match=r"sizes\.npy' is damaged") as raised:
        ImageFolder(root)
    assert raised.value.hint == f"feedline cache repair {root}"


@pytest.mark.parametrize(
    ("raw", "changes", "said"),
    [
        # The copy of sample 3 has more pixels than that of such an image, and that of 4 fewer.
        (True, {3: (40, 31), 4: (40, 63)}, "bytes, which do not match"),
        (False, {3: (40, 43), 4: (0, 0), 6: (20, 20)}, "The index is damaged or"),
    ],
)
@pytest.mark.parametrize("format", FORMATS)
def test_copy_that_does_not_match_its_original_size_raises(copied, format, raw, changes, said):
    root = copied(format, raw=raw)
    file = root / "index" / "sizes.npy"
    sizes = np.load(file)
    for sample, size in changes.items():
        sizes[sample] = size
    np.save(file, sizes)
    manifest = json.loads((root / MANIFEST).read_text())
    manifest["digests"]["sizes"] = digest_of(file)  # as if they were the cache's own
    (root / MANIFEST).write_text(json.dumps(manifest))
    data = ImageFolder(root)
    for sample in changes:
        with pytest.raises(ImageError, match=rf"sample {sample}, .*{said}"):
            row(data, sample, 20)
    assert row(data, 5, 20)[0].any()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("webdataset", MANIFEST),
        ("webdataset", "index/sizes.npy"),
        ("webdataset", "24/000000.tar"),
        ("lmdb", "24/data.mdb"),
    ],
)
def test_pipe_instead_of_file_does_not_block(copied, format, name):
    root = copied(format)
    os.unlink(root / name)
    os.mkfifo(root / name)
    said = r"is not a valid manifest|is not a file|got 0"
    with pytest.raises((DatasetError, ImageError), match=said):
        row(ImageFolder(root), 0, 20)
    if name != MANIFEST:
        assert not verify(root, workers=1).is_sound


INVALID = "is not a valid manifest"
CHANGED_TEXTS = {
    '"feedline_cache": 1': ('"feedline_cache": 2', "newer feedline"),
    '"side": 16': ('"side": "../16"', INVALID),
    '"webdataset"': ('"pickle"', "unknown format 'pickle'.* webdataset, lmdb, folder"),
    '"int64"': ('"object"', INVALID),
    '"side": 24': ('"side": 16', INVALID),
    '"samples": 12,': (f'"samples": 1{"0" * 400},', INVALID),
    '"skipped": []': ('"skipped": [[Infinity, "a", "b"]]', INVALID),
    '"shards": [': ('"shards": [7, ', "different numbers of shards"),
}


@pytest.mark.parametrize("text", CHANGED_TEXTS)
def test_invalid_manifest_is_rejected(copied, text):
    root, (other, said) = copied(), CHANGED_TEXTS[text]
    manifest = root / MANIFEST
    whole = manifest.read_text()
    assert text in whole
    manifest.write_text(whole.replace(text, other, 1 if said.startswith("different") else -1))
    with pytest.raises(DatasetError, match=said) as raised:
        ImageFolder(root)
    if said == "newer feedline":  # intact, so no rebuild because of damage
        assert "no manifest" not in str(raised.value)
    for torn in (whole[: len(whole) // 2], "[]", "[" * 100_000):
        manifest.write_text(torn)
        with pytest.raises(DatasetError, match=INVALID):
            ImageFolder(root)


def test_damaged_level_index_raises_before_first_batch(copied):
    root = copied()
    (root / "index" / "level-24.npy").unlink()
    with pytest.raises(DatasetError, match=r"(?s)level-24\.npy.*feedline cache repair"):
        DataLoader(ImageFolder(root), 8, image_size=20, on_error="skip", num_workers=1)


def test_workers_notice_rebuilt_cache(copied):
    root = copied()
    pickled = pickle.dumps(ImageFolder(root))
    manifest = root / MANIFEST
    manifest.write_text(manifest.read_text().replace('"dogs"', '"cows"'))
    with pytest.raises(DatasetError, match="was rebuilt"):
        pickle.loads(pickled)
