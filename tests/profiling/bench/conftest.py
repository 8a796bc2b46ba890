"""Images for the benchmark's tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from feedline.images.folder import ImageFolder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """root/CLASS/N.jpg: 2 classes of 10, 200 x 260 px, except 0.jpg: 100 x 90 px. Smooth."""
    root = tmp_path_factory.mktemp("photos")
    for label, name in enumerate(("cats", "dogs")):
        (root / name).mkdir()
        for number in range(10):
            height, width = (100, 90) if number == 0 else (200, 260)
            y, x = np.mgrid[0:height, 0:width]
            waves = [np.sin((x * (1 + label) + y * (1 + number) + c * 9) / 23) for c in range(3)]
            pixels = (127 + 120 * np.stack(waves, axis=2)).astype(np.uint8)
            jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels))
            (root / name / f"{number}.jpg").write_bytes(jpeg)
    return root


@pytest.fixture
def folder(photos: Path) -> ImageFolder:
    return ImageFolder(photos)
