"""Folders at URLs: listing, retries, errors, and parts of files that travel together."""

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import DatasetError, hide_secrets
from feedline.sources.remote_files import RemoteFolder
from feedline.sources.remote_filesystem import is_url
from feedline.sources.remote_reader import BLOCK_BYTES, GAP_BYTES, Range, join_ranges
from range_server import RangeServer

pytest.importorskip("aiohttp")


@pytest.fixture
def server(tmp_path):
    (tmp_path / "some").write_bytes(bytes(range(100)))
    served = RangeServer(tmp_path)
    yield served
    served.stop()


@pytest.mark.parametrize(
    ("status", "said", "again"),
    [
        (403, "credentials", False),
        (501, "whether the target supports", False),
        (503, "overloaded", True),
    ],
)
def test_permanent_failure_raises_immediately_and_others_after_retries(
    server, pauses, status, said, again
):
    server.fault = lambda answer: answer.give(status, b"no")
    there = RemoteFolder(server.url)
    often = r" \(tried \d+ times in \d+ s\)" if again else ""
    wanted = rf"^'{server.url}/some' cannot be read{often}: ClientResponseError: {status}, .*{said}"
    with pytest.raises(DatasetError, match=wanted):
        there.read("some")
    assert len(server.requests) == len(pauses) + 1
    assert bool(pauses) == again
    before = len(server.requests)
    with pytest.raises(DatasetError, match=rf"cannot be read: ClientResponseError: {status}"):
        there.read("some")
    assert len(server.requests) == before + 1  # while it is away, each is tried once


def test_missing_file_is_not_a_failure(server, pauses):
    there = RemoteFolder(server.url)
    with pytest.raises(FileNotFoundError):
        there.read("other")
    assert len(server.requests) == 1
    assert there.read("some") == bytes(range(100))


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("https://key@host:1/a?b@c", "https://host:1/a?..."),
        ("https://host/a b?X-Amz-Signature=c", "https://host/a b?..."),
        ("s3://bucket/really?.jpg", "s3://bucket/really?.jpg"),
        ("ftp://me:se@cret@host/a", "ftp://host/a"),
        ("abfs://container@account.host/a", "abfs://container@account.host/a"),
    ],
)
def test_url_is_shown_without_credentials(url, wanted):
    assert is_url(url)
    assert hide_secrets(url) == wanted


def test_a_folder_is_walked_as_on_a_disk(tmp_path):
    for name in ("a/x", "a/b/y", "a/b/z", "c/d/e/w", "c/v", "u"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")

    def walked(steps):
        found = []
        for folder, folders, files in steps:
            folders[:] = sorted(name for name in folders if name != "e")
            found.append((folder, list(folders), sorted(files)))
        return found

    here = [
        (os.path.relpath(folder, tmp_path) if folder != str(tmp_path) else "", folders, files)
        for folder, folders, files in walked(os.walk(tmp_path))
    ]
    assert walked(RemoteFolder(tmp_path.as_uri()).walk()) == here
    assert [folder for folder, _, _ in here] == ["", "a", "a/b", "c", "c/d"]


def test_a_folder_that_cannot_be_listed_is_not_passed_over(server, tmp_path):
    (tmp_path / "a" / "deep").mkdir(parents=True)
    for name in ("x", "deep/y"):
        (tmp_path / "a" / name).write_text("")
    server.fault = lambda answer: "deep" in answer.path and answer.give(403, b"")
    steps = RemoteFolder(server.url).walk()
    assert next(steps) == ("", ["a"], ["some"])
    assert next(steps) == ("a", ["deep"], ["x"])
    with pytest.raises(DatasetError, match=rf"'{server.url}/a/deep' cannot be listed: .*403"):
        next(steps)


def test_the_objects_of_a_process_share_a_filesystem_and_a_pickle_holds_none(server):
    one, other = RemoteFolder(server.url), RemoteFolder(f"{server.url}/deeper")
    (shared, top), (same, deeper) = one.opened(), other.opened()
    assert shared is same
    assert f"{top}/deeper" == deeper
    again = pickle.loads(pickle.dumps(one))
    assert again.opened()[0] is shared
    assert again.read("some") == bytes(range(100))


LENGTHS = st.one_of(st.integers(1, 100_000), st.integers(1, 2 * BLOCK_BYTES))
PARTS = st.lists(
    st.builds(Range, st.sampled_from(["24/0.tar", "24/1.tar"]), st.integers(0, 10**7), LENGTHS),
    min_size=1,
    max_size=40,
)


@given(PARTS)
def test_every_part_lies_in_its_block_and_blocks_are_bounded(parts):
    blocks, where = join_ranges(parts)
    for part, at in zip(parts, where, strict=True):
        block = blocks[at]
        assert block.url == part.url
        assert block.first <= part.first
        assert part.first + part.length <= block.first + block.length
    longest = max(part.length for part in parts)
    assert all(block.length <= max(BLOCK_BYTES, longest) for block in blocks)
    assert len(blocks) <= len(parts)


def test_parts_are_joined_across_a_small_gap_only():
    parts = [Range("a", 0, 10), Range("a", 10 + GAP_BYTES, 10), Range("a", 21 + 2 * GAP_BYTES, 5)]
    blocks, where = join_ranges(parts[::-1])
    assert blocks == [Range("a", 0, 20 + GAP_BYTES), parts[2]]
    assert where == [1, 0, 0]
    assert join_ranges([Range("a", 0, 10), Range("b", 10, 10)])[1] == [0, 1]
