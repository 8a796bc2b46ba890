"""Images and places of the user's files for the tests of sources."""

import pytest


@pytest.fixture
def images(jpeg_folder):
    """Bytes of 12 JPEGs of 2 classes."""
    return [path.read_bytes() for path in sorted(jpeg_folder.glob("*/*.jpg"))]


@pytest.fixture
def own_caches(tmp_path, monkeypatch):
    """Files that feedline saves for itself are the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
