"""What is written by hand, where the library is slow, is what the library writes."""

from __future__ import annotations

import tarfile

import pytest

from feedline.sources.cache_formats import tar_header


@pytest.mark.parametrize("name", ["000000000.jpg", "999999999.json", "1" * 96 + ".cls"])
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1 << 20, (8 << 30) - 1])
def test_a_header_is_tarfiles_own(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    assert tar_header(name, size) == info.tobuf(tarfile.USTAR_FORMAT)
