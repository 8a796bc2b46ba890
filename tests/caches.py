"""Small caches for the tests, their contents, and ways to damage and stop them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

import preloaded
from feedline.cache.build import build_cache
from feedline.sources.manifest import Manifest
from feedline.sources.remote_cache import open_cache

SIZES = (16, 24)
FORMATS = ("webdataset", "lmdb", "folder")


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


def smooth_photos(root: Path, count: int, width: int, seed: int) -> Path:
    """Write root/a/NN.jpg and root/b/NN.jpg in turn: all different, 90 px high, up to 4 px
    narrower than `width`. Return the root.
    """
    generator = np.random.default_rng(seed)
    for number in range(count):
        coarse = generator.integers(0, 256, (4, 5, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width - number % 5, 90), Image.Resampling.BICUBIC)
        path = root / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(exist_ok=True)
        image.save(path, quality=95)
    return root


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


def everything(root: Path) -> dict[str, bytes]:
    """All files of a cache; of an LMDB the entries, because their pages may differ in order."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.name == "data.mdb":
            import lmdb

            with lmdb.open(str(path.parent), readonly=True, lock=False) as opened:
                for key, value in opened.begin().cursor():
                    found[f"{name}/{key.decode()}"] = value
        elif path.is_file() and path.name not in (".lock", "lock.mdb"):
            found[name] = path.read_bytes()
    return found


def shown(root: Path, side: int) -> list[np.ndarray[Any, Any]]:
    store = open_cache(root)
    return [
        np.asarray(Image.open(io.BytesIO(image))) if isinstance(image, bytes) else image
        for image in (store.read(sample, side) for sample in range(len(store)))
    ]


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


def flip_copy(root: Path, sample: int, side: int) -> Path:
    """Change one bit in the middle of a copy. Return its file."""
    with closing(open_cache(root)) as store:
        copy = bytes(memoryview(store.read(sample, side)))
    files = (path for path in (root / str(side)).rglob("*.*") if path.is_file())
    (path,) = (path for path in files if copy in path.read_bytes())
    flip(path, path.read_bytes().index(copy) + len(copy) // 2)
    return path


def spoil(path: Path) -> None:
    """Make zeros of an image, with the same size and time."""
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def stopping(images: int) -> Callable[[Any], None]:
    """A progress function that breaks a job off after so many images."""

    def stop(state: Any) -> None:
        if state.new_images >= images:
            raise KeyboardInterrupt

    return stop


def kill_after_a_unit(call: str) -> None:
    """Run a job in a process that is killed after one of at least three units.

    Args:
        call: Python code in which `progress` is the function that kills it.
    """
    script = (
        "import os, feedline\n"
        "from feedline.cache.build import add_size\n"
        "def progress(state, done=0, total=0):\n"
        "    if done and state == 'repairing' or getattr(state, 'new_images', 0):\n"
        "        os._exit(99)\n"
        f"{call}\n"
    )
    command = [sys.executable, "-c", script]
    ended = preloaded.run(command, capture_output=True, timeout=60, env=environment())
    assert ended.returncode == 99, ended.stderr


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
