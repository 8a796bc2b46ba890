"""Small caches for the tests, and ways to damage them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import simplejpeg

from feedline.cache.build import build_cache
from feedline.sources.manifest import Manifest
from feedline.sources.remote_cache import open_cache

SIZES = (16, 24)
FORMATS = ("webdataset", "lmdb", "folder")
STOPPED = 99  # the exit status of a script that stops in the middle


def photos(root: Path, count: int = 6) -> Path:
    """Create root/CLASS/N.jpg: 2 classes of smooth, distinct JPEGs, 40 px high."""
    for label, name in enumerate(("cats", "dogs")):
        (root / name).mkdir(parents=True)
        for number in range(count):
            photo(root / name / f"{number}.jpg", number, label)
    return root


def photo(path: Path, number: int, label: int = 0) -> None:
    y, x = np.mgrid[0:40, 0 : 44 + number % 16]
    waves = [np.sin((x * (1 + label) + y * (1 + number) + c * 9) / 11) for c in range(3)]
    pixels = (127 + 120 * np.stack(waves, axis=2)).astype(np.uint8)
    path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels)))


def made(source: Path, root: Path, format: str = "webdataset", **options: object) -> Manifest:
    """A cache, made in this process."""
    sizes = options.pop("sizes", SIZES)
    return build_cache(source, root, sizes, format=format, workers=0, **options)  # type: ignore


def contents(root: Path, *, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The bytes of all files below a folder, by their paths; without locks."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in (".lock", *but)
    }


def images(root: Path) -> list[bytes]:
    """The bytes of all copies, level by level."""
    store = open_cache(root)
    levels = store.manifest.levels
    found = [store.read(sample, level.side) for level in levels for sample in range(len(store))]
    store.close()
    return [bytes(memoryview(np.asarray(each))) for each in found]


def flip(path: Path, at: int) -> None:
    """Change one bit of a file in its place."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def find(path: Path, image: bytes) -> int:
    """Position of an image in a file."""
    at = path.read_bytes().find(image)
    assert at >= 0
    return at


def stopping(call: str) -> list[str]:
    """Command of a script that is killed after one of at least three units.

    Args:
        call: Python code in which `progress` is the function that stops it.
    """
    script = (
        "import os\n"
        "from feedline.cache.build import add_size\n"
        "def progress(said):\n"
        "    if said.new_images:\n"
        f"        os._exit({STOPPED})\n"
        f"{call}\n"
    )
    return [sys.executable, "-c", script]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
