"""Failing, wrong or unreachable servers: never a wrong image or an endless wait, with recovery."""

import contextlib
import errno
import io
import json
import os
import shutil
import threading

import numpy as np
import pytest
import xxhash

from feedline import DataLoader, ImageFolder
from feedline.errors import DatasetError, ImageError
from feedline.sources import local_copies, remote_cache, remote_reader
from feedline.sources.manifest import MANIFEST
from processes import eventually
from range_server import OPTIONS, altered, batches, reset, same, shorter
from row_of import row

pytest.importorskip("aiohttp")

COUNT = 80


@pytest.fixture
def cache(served):
    return served / "cache"


@pytest.fixture
def wanted(cache):
    return batches(ImageFolder(cache))


@pytest.fixture
def remote(server, tmp_path):
    return ImageFolder(f"{server.url}/cache", local_dir=tmp_path / "local")


def skipped_of(data):
    """Name and error of the only image that cannot be loaded."""
    with DataLoader(data, 16, **{**OPTIONS, "on_error": "skip"}) as loader:
        assert sum(len(labels) for _, labels in loader) == COUNT - 1
        ((name, why),) = loader.skipped
    return name, why


# Faults that pass


def test_server_is_retried_until_available(remote, server, wanted, clock):
    def come_back():
        if len(clock.pauses) == 4:
            server.fault = None
            server.start()

    clock.then = come_back
    with DataLoader(remote, 16, **OPTIONS) as loader:
        found = []
        for images, labels in loader:
            found.append((images.clone(), labels.clone()))
            if len(found) == 2:
                server.stop()
                server.fault = reset  # of connections that are still open
    assert same(found, wanted)
    assert len(clock.pauses) == 4
    assert clock.pauses == sorted(clock.pauses)


# Faults that last


def test_unreachable_server_raises_and_later_failures_are_quick(remote, server, clock):
    server.stop()
    try:
        with pytest.raises(
            ImageError,
            match=rf"sample 3, .* of '{server.url}/cache/24/000000\.tar' from byte \d+ on cannot "
            r"be read \(tried \d+ times in \d+ s\): Client\w+.*server may be down",
        ):
            row(remote, 3, 24, 0)
        assert 30 < sum(clock.pauses) <= 1.5 * remote_reader.IMAGE_PATIENCE_S
        waited = len(clock.pauses)
        for sample in range(4, 20):
            with pytest.raises(ImageError):
                row(remote, sample, 24, 0)
        assert len(clock.pauses) == waited
        clock.passed_s = 60.0  # it is given another chance
        with pytest.raises(ImageError):
            row(remote, 3, 24, 0)
        assert len(clock.pauses) > waited
    finally:
        server.start()
    clock.passed_s = 200.0
    assert row(remote, 3, 24, 0)[0].any()


@pytest.mark.parametrize("fault", [altered, shorter])
def test_foreign_bytes_are_named_and_never_stored(
    remote, server, cache, tmp_path, clock, apart, fault
):
    place = np.load(cache / "index" / "level-24.npy")[5, 1]
    server.fault = lambda answer: answer.first == place and fault(answer)
    name, why = skipped_of(remote)
    assert name == remote.name(5)
    assert "rebuilt there after the dataset was created" in why
    assert len(clock.pauses) == 2
    (part,) = tmp_path.rglob("24/000000.part")
    length = int(np.load(cache / "index" / "level-24.npy")[5, 2])
    assert part.read_bytes()[place : place + length] == bytes(length)


def endless(status, length):
    def fault(answer):
        answer.send_response(status)
        answer.send_header(*(("Content-Length", str(10**12)) if length else ("X-No", "length")))
        answer.end_headers()
        with contextlib.suppress(OSError):  # the client has gone
            for _ in range(10**5):
                answer.wfile.write(bytes(1 << 16))
                answer.server.owner.sent_bytes += 1 << 16
        answer.close_connection = True
        return True

    return fault


@pytest.mark.parametrize("status", [200, 206, 404, 503])
@pytest.mark.parametrize("length", [False, True])
def test_endless_body_is_not_read(server, tmp_path, status, length, clock):
    server.fault = endless(status, length)
    said = {
        200: "status 200",
        206: "declare the length|sends",
        404: "copied incompletely",
        503: "overloaded",
    }
    with pytest.raises(DatasetError, match=said[status]):
        ImageFolder(f"{server.url}/cache", local_dir=tmp_path)
    assert eventually(lambda: server.in_flight == 0)
    # For each attempt the content of the socket buffers on both sides.
    assert server.sent_bytes < len(server.requests) * (16 << 20)


@pytest.mark.parametrize(
    ("status", "said", "tries"),
    [
        (403, "credentials", 1),
        (404, "URL is misspelt", 2),  # it may be an image folder, which is then listed
        (410, "410", 1),
        (429, "overloaded", 4),
        (500, "overloaded", 4),
    ],
)
def test_permanent_errors_are_not_retried_and_temporary_ones_are(
    server, tmp_path, clock, status, said, tries
):
    server.fault = lambda answer: answer.give(status, b"no")
    with pytest.raises(DatasetError, match=said):
        ImageFolder(f"{server.url}/cache", local_dir=tmp_path)
    assert len(server.requests) == pytest.approx(tries, abs=1 if tries > 1 else 0)


def test_missing_server_fails_quickly(server, tmp_path, monkeypatch):
    monkeypatch.setattr(remote_cache, "INDEX_PATIENCE_S", 0.0)
    server.stop()
    server.fault = reset  # of connections that are still open
    try:
        with pytest.raises(DatasetError, match=rf"{server.url}/cache.*Connect.*server may be down"):
            ImageFolder(f"{server.url}/cache", local_dir=tmp_path)
    finally:
        server.start()


def test_silent_server_times_out(remote, server, monkeypatch):
    monkeypatch.setattr(remote_reader, "_DEADLINE_S", 0.2)
    monkeypatch.setattr(remote_reader, "IMAGE_PATIENCE_S", 0.0)
    ended = threading.Event()
    server.fault = lambda answer: not ended.wait(60)
    try:
        with pytest.raises(ImageError, match="TimeoutError"):
            row(remote, 3, 24, 0)
    finally:
        ended.set()


# The local disk


def test_full_disk_does_not_fail(remote, wanted, monkeypatch, caplog):
    write = local_copies.write_at

    def write_half(descriptor, data, first):
        write(descriptor, data[: len(data) // 2], first)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local_copies, "write_at", write_half)
    for _ in range(2):
        assert same(batches(remote), wanted)
    assert "cannot be stored" in caplog.text


def test_read_only_folder_is_named(server, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match=r"cannot be stored in '.*file/.*use another folder as"):
        ImageFolder(f"{server.url}/cache", local_dir=tmp_path / "file")


# A cache from a stranger


def test_index_that_contradicts_manifest_is_rejected(server, cache, tmp_path):
    server.fault = lambda answer: answer.path.endswith("labels.npy") and altered(answer)
    with pytest.raises(DatasetError, match=r"index/labels\.npy of the cache .* its digest differs"):
        ImageFolder(f"{server.url}/cache", local_dir=tmp_path)
    assert not list(tmp_path.rglob("labels.npy*"))


def forged(cache, root, column=None, array=None, **said):
    """A copy of a cache, with other things in its manifest and a column of its index."""
    shutil.copytree(cache, root)
    manifest = json.loads((root / MANIFEST).read_text())
    if column is not None:
        data = io.BytesIO()
        np.save(data, array, allow_pickle=True)
        (root / "index" / f"{column}.npy").write_bytes(data.getvalue())
        manifest["digests"][column] = xxhash.xxh3_64_hexdigest(data.getvalue())
    (root / MANIFEST).write_text(json.dumps({**manifest, **said}))


@pytest.mark.parametrize(
    "said", [{"samples": 10**15}, {"samples": 2**62}, {"label": ["int64", [10**6, 10**6]]}], ids=str
)
def test_too_large_index_is_not_fetched(server, cache, tmp_path, said):
    forged(cache, tmp_path / "forged", **said)
    server.root = tmp_path
    with pytest.raises(DatasetError, match=r"has a file of .* GB, but only .* GB may be stored"):
        ImageFolder(f"{server.url}/forged", local_dir=tmp_path / "local")
    assert server.asked("labels.npy") == 0


@pytest.mark.parametrize(
    "place",
    [(3, 0, 100), (2**63, 0, 100), (0, 2**63, 100), (0, 0, 2**40), (0, 2**64 - 1, 2**64 - 1)],
)
def test_wrong_index_entry_affects_only_its_image(server, cache, tmp_path, place):
    entries = np.load(cache / "index" / "level-24.npy")
    entries[5, :3] = place
    forged(cache, tmp_path / "forged", "level-24", entries)
    server.root = tmp_path
    data = ImageFolder(f"{server.url}/forged", local_dir=tmp_path / "local")
    assert "does not exist" in skipped_of(data)[1]
    assert {path for path, _ in server.requests if ".tar" in path} <= {
        f"/forged/24/00000{shard}.tar" for shard in range(3)
    }


def test_index_of_pickled_objects_is_rejected(server, cache, tmp_path):
    objects = np.array([object()] * COUNT)
    forged(cache, tmp_path / "forged", "keys", objects)
    server.root = tmp_path
    with pytest.raises(DatasetError):
        ImageFolder(f"{server.url}/forged", local_dir=tmp_path / "local")
