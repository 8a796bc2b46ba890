"""Shard names: braces, wildcards, and missing files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feedline.errors import DatasetError, UsageError
from feedline.sources.webdataset import expand_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a-0.tar", "a-1.tar", "b-0.tar", "odd{1}.tar"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "below").mkdir()
    return tmp_path


def test_paths_are_filled_in_in_their_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def names(given: object) -> list[str]:
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
        ("0}.tar", "unmatched brace"),
        ("a-{0..4}.tar", r"3 of 5 shards are missing or not files: '.*a-2\.tar'"),
        ("z*.tar", "no files match"),
        ("below", r"(?s)1 of 1 shards .* for all shards in a folder use '.*below/\*\.tar'"),
        ("s3://bucket/a.tar", "download them, or make smaller copies"),
        ("pipe:curl -s a.tar", "download them, or make smaller copies"),
        ([], "list of shards is empty"),
        (7, "shards must be a path, or a list of paths, got 7"),
        (b"a.tar", "shards must be a path"),
        ([None], "shards must be a path"),
    ],
)
def test_invalid_shard_raises_with_hint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: object, said: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises((DatasetError, UsageError), match=said):
        expand_shards(given)
