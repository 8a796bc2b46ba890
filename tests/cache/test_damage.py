"""Caches that were damaged, mixed up, or made by another version: never a wrong image or label."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caches import FORMATS, flip, photos
from feedline import DataLoader, ImageFolder, build_cache
from feedline.cache.damage import verify
from feedline.errors import DatasetError, ImageError
from feedline.sources.manifest import MANIFEST, digest_of
from row_of import row
from slow import slow

pytest.importorskip("lmdb")


@pytest.fixture
def damaged(built: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    def copy(format: str = "webdataset", raw: bool = False) -> Path:
        return Path(shutil.copytree(built(format, raw), tmp_path / "cache"))

    return copy


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("format", ["webdataset", "folder", *slow("lmdb")])
def test_flipped_byte_is_detected_and_named(
    damaged: Callable[..., Path], format: str, raw: bool
) -> None:
    root = damaged(format, raw)
    sample = 5
    if format == "folder":
        path = sorted((root / "48").rglob("00000000*"))[sample]
        flip(path, path.stat().st_size - 9)
    else:
        image = ImageFolder(root).store.read(sample, 48)
        held = image if isinstance(image, bytes) else image.tobytes()
        (path,) = (
            [root / "48" / "data.mdb"]
            if format == "lmdb"
            else [p for p in (root / "48").iterdir() if held in p.read_bytes()]
        )
        flip(path, path.read_bytes().index(held) + len(held) // 2)
    data = ImageFolder(root)
    with pytest.raises(ImageError, match=r"sample 5, .*\.jpg, .*checksum differs"):
        row(data, sample, 40, 0)
    assert row(data, sample, 16, 0)[0].any()  # of the other level
    with DataLoader(data, 8, image_size=40, num_workers=1, on_error="skip") as loader:
        assert sum(len(labels) for _, labels in loader) == 23
        assert [name for name, _ in loader.skipped] == [data.name(sample)]


def flip_first(shard: Path) -> None:
    flip(shard, 600)  # the first copy is longer


def cut(shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size // 2)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("harm", [flip_first, cut, Path.unlink])
def test_damaged_copy_raises_with_repair_command(
    damaged: Callable[..., Path], harm: Callable[[Path], None], workers: int
) -> None:
    root = damaged()
    harm(root / "48" / "000000.tar")
    options: Any = {"image_size": 40, "num_workers": workers, "shuffle": False}
    with (
        DataLoader(ImageFolder(root), 8, **options) as loader,
        pytest.raises(ImageError) as raised,
    ):
        next(iter(loader))
    _, *hints = str(raised.value).split("\n")
    assert hints == [f"hint: feedline cache repair {root}"]


def test_index_of_another_cache_does_not_change_labels(
    damaged: Callable[..., Path], built: Callable[..., Path]
) -> None:
    root = damaged()
    labels = np.load(root / "index" / "labels.npy")
    np.save(root / "index" / "labels.npy", labels[::-1])
    data = ImageFolder(root)
    for sample in np.flatnonzero(labels != labels[::-1])[:3].tolist():
        with pytest.raises(ImageError, match="checksum differs"):
            row(data, sample, 16, 0)
    np.save(root / "index" / "labels.npy", labels[:-1])
    with pytest.raises(DatasetError, match="does not match its manifest"):
        ImageFolder(root)
    np.save(root / "index" / "labels.npy", np.array([object()] * 24), allow_pickle=True)
    with pytest.raises(DatasetError, match=r"does not match .*got object"):
        ImageFolder(root)


def write_sizes(root: Path, sizes: Any) -> None:
    """Write other sizes, and their digest, as if they were the cache's own."""
    file = root / "index" / "sizes.npy"
    np.save(file, sizes)
    manifest = json.loads((root / MANIFEST).read_text())
    manifest["digests"]["sizes"] = digest_of(file)
    (root / MANIFEST).write_text(json.dumps(manifest))


def test_wrong_sizes_raise_before_cropping(damaged: Callable[..., Path]) -> None:
    file = damaged() / "index" / "sizes.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(DatasetError, match=r"sizes\.npy' is damaged") as raised:
        ImageFolder(file.parents[1])
    assert raised.value.hint == f"feedline cache repair {file.parents[1]}"


@pytest.mark.parametrize("format", FORMATS)
def test_raw_pixels_with_wrong_size_raise(damaged: Callable[..., Path], format: str) -> None:
    root = damaged(format, raw=True)
    sizes = np.load(root / "index" / "sizes.npy")
    sizes[3] -= 16  # fewer pixels than the file has
    sizes[4] += 16
    write_sizes(root, sizes)
    data = ImageFolder(root)
    for sample in (3, 4):
        with pytest.raises(ImageError, match=rf"sample {sample}, .* bytes, which do not match"):
            row(data, sample, 16, 0)
    assert row(data, 5, 16, 0)[0].any()


@pytest.mark.parametrize("format", FORMATS)
def test_copy_that_does_not_match_original_size_raises(
    damaged: Callable[..., Path], format: str
) -> None:
    root = damaged(format)
    sizes = np.load(root / "index" / "sizes.npy")
    sizes[3, 1] ^= 4
    sizes[4] = 0
    sizes[6] = 20  # less than its copy
    write_sizes(root, sizes)
    data = ImageFolder(root)
    for sample in (3, 4, 6):
        with pytest.raises(ImageError, match=rf"sample {sample}, .*The index is damaged or"):
            row(data, sample, 40, 0)
    assert row(data, 5, 40, 0)[0].any()


INDEX_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "short": lambda data: data[:-1],
    "header": lambda data: data.replace(b"}", b"{", 1),
    "no array": lambda data: b"x" + data,
}


@pytest.mark.parametrize("damage", INDEX_DAMAGE)
def test_damaged_index_files_are_rejected(damaged: Callable[..., Path], damage: str) -> None:
    path = damaged() / "index" / "keys.npy"
    path.write_bytes(INDEX_DAMAGE[damage](path.read_bytes()))
    with pytest.raises(DatasetError, match=r"(?s)keys\.npy' .*feedline cache repair") as raised:
        ImageFolder(path.parent.parent)
    assert "pickle" not in str(raised.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("webdataset", "feedline-cache.json"),
        ("webdataset", "index/sizes.npy"),
        ("webdataset", "48/000000.tar"),
        ("lmdb", "48/data.mdb"),
    ],
)
def test_pipe_instead_of_file_does_not_block(
    damaged: Callable[..., Path], format: str, name: str
) -> None:
    root = damaged(format)
    os.unlink(root / name)
    os.mkfifo(root / name)
    with pytest.raises(
        (DatasetError, ImageError), match=r"is not a valid manifest|is not a file|got 0"
    ):
        row(ImageFolder(root), 0, 40, 0)
    if not name.endswith("json"):
        assert not verify(root, workers=1).is_sound


CHANGED_TEXTS = {
    '"feedline_cache": 1': ('"feedline_cache": 2', "newer feedline"),
    '"side": 24': ('"side": "../24"', "is not a valid manifest"),
    '"webdataset"': ('"pickle"', "unknown format 'pickle'.* webdataset, lmdb, folder"),
    '"int64"': ('"object"', "is not a valid manifest"),
    '"int64",': ('"int7",', "is not a valid manifest"),
    '"side": 48': ('"side": 24', "is not a valid manifest"),
    '"samples": 24': ('"samples": -1', "is not a valid manifest"),
    '"samples": 24,': (f'"samples": 1{"0" * 400},', "is not a valid manifest"),
    '"skipped": []': ('"skipped": [[Infinity, "a", "b"]]', "is not a valid manifest"),
    '"shards": [': ('"shards": [7, ', "different numbers of shards"),
}


@pytest.mark.parametrize("text", CHANGED_TEXTS)
def test_invalid_manifest_is_rejected(damaged: Callable[..., Path], text: str) -> None:
    root, (other, said) = damaged(), CHANGED_TEXTS[text]
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
        with pytest.raises(DatasetError, match="is not a valid manifest"):
            ImageFolder(root)


def test_damaged_level_index_raises_before_first_batch(
    damaged: Callable[..., Path],
) -> None:
    root = damaged()
    (root / "index" / "level-48.npy").unlink()
    with pytest.raises(DatasetError, match=r"(?s)level-48\.npy.*feedline cache repair"):
        DataLoader(ImageFolder(root), batch_size=8, image_size=40, on_error="skip", num_workers=1)


def test_missing_copy_is_named_by_its_file(damaged: Callable[..., Path]) -> None:
    root = damaged("folder")
    path = sorted((root / "48").rglob("00000000*"))[5]
    path.unlink()
    with pytest.raises(ImageError, match=path.name):
        row(ImageFolder(root), 5, 40, 0)


@pytest.mark.parametrize("harm", ["flipped", "missing"])
@pytest.mark.parametrize("changed", [False, True])
def test_build_recreates_damaged_index(tmp_path: Path, changed: bool, harm: str) -> None:
    source, root = photos(tmp_path / "photos"), tmp_path / "cache"
    build_cache(source, root, (16,), workers=0)
    sizes = root / "index" / "sizes.npy"
    written = sizes.read_bytes()
    if harm == "missing":
        sizes.unlink()
    else:
        flip(sizes, len(written) - 4)  # a width, which no checksum of an image knows
    if changed:  # copies of the others are reused if possible
        os.utime(sorted(source.rglob("*.jpg"))[0], (1, 1))
    build_cache(source, root, (16,), workers=0)
    assert sizes.read_bytes() == written
    assert verify(root, workers=1).is_sound


def test_workers_notice_rebuilt_cache(damaged: Callable[..., Path]) -> None:
    root = damaged()
    pickled = pickle.dumps(ImageFolder(root))
    manifest = root / "feedline-cache.json"
    manifest.write_text(manifest.read_text().replace('"b"', '"c"'))
    with pytest.raises(DatasetError, match="was rebuilt"):
        pickle.loads(pickled)
