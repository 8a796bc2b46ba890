"""Leftovers of an earlier build when a cache is rebuilt from fewer images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from cache_contents import everything
from caches import made

pytest.importorskip("lmdb")


def test_entries_are_removed_from_full_lmdb(tmp_path: Path) -> None:
    source = tmp_path / "photos"
    (source / "cats").mkdir(parents=True)
    for number in range(96):
        pixels = np.full((256, 256, 3), number, np.uint8)
        jpeg = simplejpeg.encode_jpeg(pixels)
        (source / "cats" / f"{number:02}.jpg").write_bytes(jpeg)
    made(source, tmp_path / "cache", "lmdb", sizes=(256,), raw=True)
    for number in range(64, 96):  # all of a unit, so that nothing is written before it is removed
        (source / "cats" / f"{number}.jpg").unlink()
    made(source, tmp_path / "cache", "lmdb", sizes=(256,), raw=True)
    made(source, tmp_path / "new", "lmdb", sizes=(256,), raw=True)
    assert everything(tmp_path / "cache") == everything(tmp_path / "new")
