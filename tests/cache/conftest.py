"""Images, caches of them, and rows made of them, for the tests of this folder."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caches import made, smooth_photos
from caches import photos as write_photos
from feedline.cache.build import build_cache


def pytest_collection_modifyitems(items):
    """Ignore the warning of the hidden class folder of `odd_photos`."""
    for item in items:
        if "odd_photos" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:.*hidden files count as images"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Smooth images of 90 to 110 px, 12 of each of two classes, all different."""
    return smooth_photos(tmp_path_factory.mktemp("photos"), 24, width=110, seed=1)


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """80 photographs of 2 classes, so three shards; tests must not change them."""
    return write_photos(tmp_path_factory.mktemp("many") / "photos", 40)


@pytest.fixture
def root(tmp_path):
    """Folder of the cache."""
    return tmp_path / "cache"


@pytest.fixture
def few(tmp_path):
    """12 photographs of 2 classes."""
    return write_photos(tmp_path / "photos")


@pytest.fixture(scope="session")
def whole(source, tmp_path_factory):
    """Caches of 12 photographs, or of the many, at 16 and 24 px, each built once."""
    root = tmp_path_factory.mktemp("whole")
    photos = write_photos(root / "photos")

    def cache(format="webdataset", *, raw=False, many=False):
        place = root / f"{format} {raw} {many}"
        if not place.exists():
            made(source if many else photos, place, format, raw=raw)
        return place

    return cache


@pytest.fixture
def copied(whole, tmp_path):
    """The same, for a test that changes them."""
    return lambda *kind, **options: Path(
        shutil.copytree(whole(*kind, **options), tmp_path / "cache")
    )


@pytest.fixture(scope="module")
def built(photos, tmp_path_factory):
    """Caches of 24 and 48 px, each built once."""
    root = tmp_path_factory.mktemp("caches")

    def cache(format="webdataset", raw=False):
        place = root / f"{format} {raw}"
        if not place.exists():
            build_cache(photos, place, (24, 48), format=format, raw=raw, workers=2)
        return place

    return cache


@pytest.fixture
def odd_photos(tmp_path):
    """root/CLASS/NAME: 70 images, so three shards; two are smaller than a level, two no JPEGs."""
    root = tmp_path / "photos"
    generator = np.random.default_rng(0)
    for number in range(70):
        height, width = (14, 20) if number in (3, 40) else (30 + number % 7, 44)
        coarse = generator.integers(0, 256, (3, 4, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        path = root / ("ants", "bees.v2", ".hidden")[number % 3] / f"{number:02}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number in (5, 6):
            image.save(path.with_suffix(".png"))
        else:
            image.save(path.with_suffix(".jpg"), quality=95)
    return root
