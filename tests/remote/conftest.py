"""Served photographs and caches of them, and time that passes without waiting."""

import pytest

from caches import made, photos
from feedline.sources import remote_filesystem, remote_reader
from range_server import Clock, RangeServer


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """80 "photos", and caches of them at 16 and 24 px in three shards, "cache" and "raw".

    Any user may read the folder.
    """
    root = tmp_path_factory.mktemp("served")
    photos(root / "photos", 40)
    for name in ("cache", "raw"):
        made(root / "photos", root / name, raw=name == "raw")
    for folder in (root, *root.parents[:2]):
        folder.chmod(0o755)
    return root


@pytest.fixture
def server(served):
    running = RangeServer(served)
    yield running
    running.fault = None
    running.stop()


@pytest.fixture
def clock(monkeypatch):
    """By which it is decided when to try again."""
    clock = Clock()
    monkeypatch.setattr(remote_filesystem, "time", clock)
    return clock


@pytest.fixture
def pauses(clock):
    """Pauses between attempts, without waiting."""
    return clock.pauses


@pytest.fixture
def apart(monkeypatch):
    """Each image is a request."""
    monkeypatch.setattr(remote_reader, "GAP_BYTES", 0)
