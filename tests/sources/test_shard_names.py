"""Shard names: braces, wildcards, and missing files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from feedline.errors import DatasetError, UsageError
from feedline.sources.webdataset import _expand_braces, expand_shards


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain.tar", ["plain.tar"]),
        ("{000..002}.tar", ["000.tar", "001.tar", "002.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{8..011}", ["008", "009", "010", "011"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{0..9..4}", ["0", "4", "8"]),
        ("{9..0..4}", ["9", "5", "1"]),
        ("{a..c}", ["a", "b", "c"]),
        ("{a,b}-{0..1}", ["a-0", "a-1", "b-0", "b-1"]),
        ("x{a,b{1,2},}y", ["xay", "xb1y", "xb2y", "xy"]),
        ("{a}{}{{1..2}}", ["{a}{}{1}", "{a}{}{2}"]),
        (r"\{a,b\}", ["{a,b}"]),
        (r"{a\,b,c}", ["a,b", "c"]),
    ],
)
def test_braces_expand_to_several_names(text: str, wanted: list[str]) -> None:
    assert _expand_braces(text) == wanted


def test_braces_expand_like_in_webdataset() -> None:
    braceexpand = pytest.importorskip("braceexpand").braceexpand
    texts = ["d/{0..3}-{a,b}.tar", "{007..010..2}", "{a..e..2}", "{1,{2..3}}", "{}x{a}", r"\{x\}"]
    for text in texts:
        assert _expand_braces(text) == list(braceexpand(text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{0..3.tar", "unmatched brace"),
        ("0}.tar", "unmatched brace"),
    ],
)
def test_invalid_braces_are_rejected(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        _expand_braces(text)


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
