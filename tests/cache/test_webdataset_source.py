"""Caches of WebDataset shards, and shards that are not as they should be."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import LABELS, assert_cached, encoded, pictures

from feedline.cache.build import build_cache
from feedline.cache.source import open_source
from feedline.errors import DatasetError, UsageError
from tars import write_tar

webdataset = pytest.importorskip("webdataset")


def written(path: Path, samples: list[dict[str, Any]]) -> Path:
    """A shard as the webdataset package writes it."""
    with webdataset.TarWriter(str(path)) as shard:
        for sample in samples:
            shard.write(sample)
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards of webdataset's with labels in .cls."""
    root = tmp_path / "shards"
    root.mkdir()
    samples = [
        {
            "__key__": f"deep/{number:03d}",
            "png": encoded(picture),
            "cls": label,
            "json": {"more": [1]},
        }
        for number, (picture, label) in enumerate(zip(pictures(), LABELS, strict=True))
    ]
    written(root / "b.tar", samples[5:])
    written(root / "a.tar", samples[:5])
    (root / "README.md").write_text("not a shard")
    return root


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_become_a_cache(shards: Path, tmp_path: Path, workers: int) -> None:
    build_cache(shards, tmp_path / "cache", (16,), raw=True, workers=workers)
    names = [f"{'ab'[number > 4]}.tar/deep/{number:03d}" for number in range(len(LABELS))]
    assert_cached(tmp_path / "cache", pictures(), LABELS, names, [])


@pytest.mark.parametrize("pattern", ["a.tar", "[a].tar"])
def test_one_shard_may_be_named(shards: Path, pattern: str) -> None:
    source = open_source(shards / pattern)
    assert [source.store.key(sample) for sample in range(len(source))] == [
        f"a.tar/deep/{number:03d}" for number in range(5)
    ]


def test_image_is_chosen_by_extension_and_label_may_be_json(tmp_path: Path) -> None:
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
        ({"1.cls": b"1"}, r"a\.tar/1': it has no image: there is only \.cls"),
        ({"n01.tar": b""}, r"a\.tar/n01': it has no image: there is only \.tar"),
        ({"1.jpg": b""}, r"a\.tar/1': it has no label: there is only \.jpg"),
        ({"1.jpg": b"", "1.json": b'{"label": 9223372036854775808}'}, "label 9223372036854775808"),
        ({"1.jpg": b"", "1.json": b"{"}, r"a\.tar/1': it has no label: its \.json cannot be read"),
        (
            {"1.jpg": b"", "1.cls": b"1", "2.jpg": b"", "2.cls": b"ant"},
            r"mixed types: 'ant' of sample 1, 'a\.tar/2\.jpg',",
        ),
        (
            {"1.jpg": b"", "1.cls": b"1", "2.jpg": b"", "2.cls": b"1", "1.txt": b""},
            "has the key '1' twice",
        ),
        ({"1.jpg": b"", "1.JPG": b"", "1.cls": b"1"}, "has '1.jpg' twice"),
        ({"README": b""}, "contains no samples"),
    ],
)
def test_malformed_shard_is_rejected_with_its_key(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    path = write_tar(tmp_path / "a.tar", files)
    with pytest.raises(UsageError, match=said) as refused:  # DatasetError is one
        open_source(path)
    assert "a.tar" in str(refused.value)


def test_texts_are_class_names(tmp_path: Path) -> None:
    files = {"1.jpg": b"", "1.cls": b"bee", "2.jpg": b"", "2.cls": b"ant"}
    source = open_source(write_tar(tmp_path / "a.tar", files))
    assert source.classes == ["ant", "bee"]
    assert [source.store.label(sample) for sample in range(2)] == [1, 0]


def test_shard_truncated_anywhere_is_rejected(shards: Path) -> None:
    whole = (shards / "b.tar").read_bytes()
    with tarfile.open(shards / "b.tar") as tar:
        last = tar.getmembers()[-1]
    content_ends = last.offset_data + 512
    for length in (0, 100, 512, 700, last.offset, last.offset + 100, content_ends, len(whole)):
        (shards / "b.tar").write_bytes(whole[:length])
        if length == len(whole):
            assert len(open_source(shards)) == len(LABELS)
        else:
            with pytest.raises(DatasetError, match=r"shard '.*b\.tar'"):
                open_source(shards)


def test_any_bytes_are_shards_or_raise_with_their_name(shards: Path) -> None:
    whole = (shards / "b.tar").read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        for place in generator.integers(0, len(whole) // 512, 3):
            at = int(place) * 512 + int(generator.integers(0, 512))
            damaged[at] = int(generator.integers(0, 256))
        (shards / "b.tar").write_bytes(damaged)
        try:
            assert len(open_source(shards / "b.tar")) == 3
        except DatasetError as error:
            assert "b.tar" in str(error)  # noqa: PT017


@pytest.mark.parametrize("name", ["a.tar.gz", "a.TGZ", "a.tar.zst"])
def test_compressed_shards_raise_with_hint(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / name, "w:gz"):
        pass
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(DatasetError, match=r"(?s)compressed.*\.tar files"):
            open_source(path)
    os.rename(tmp_path / name, tmp_path / "b.tar")
    with pytest.raises(DatasetError, match=r"b\.tar' is compressed by gzip"):
        open_source(tmp_path)


def test_stamp_changes_with_shard_and_position(shards: Path) -> None:
    stamps = [open_source(shards).store.stamp(sample) for sample in range(len(LABELS))]
    assert len(set(stamps)) == len(LABELS)
    assert [open_source(shards).store.stamp(sample) for sample in range(len(LABELS))] == stamps
    os.utime(shards / "b.tar", ns=(0, 1))
    later = [open_source(shards).store.stamp(sample) for sample in range(len(LABELS))]
    assert later[:5] == stamps[:5]
    assert not set(later[5:]) & set(stamps)
