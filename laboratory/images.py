"""Images for the laboratory, created on first use in a folder of their own."""

from __future__ import annotations

import io
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from PIL import Image

from feedline.cli.demo_set import CLASS_NAMES, demo_pixels

PHOTOS = 384
LARGE = 64
CLASSES = 4
LARGE_PX = (1600, 1200)

FOLDER = Path()


def photos() -> Path:
    """JPEGs of 500 x 375 px, one sub-folder per class."""
    return _create("photos", PHOTOS)


def large() -> Path:
    """JPEGs of 1600 x 1200 px."""
    return _create("large", LARGE)


def small() -> Path:
    """The large images with a shorter side of 128 px."""
    _create("large", LARGE)
    return FOLDER / "small"


def use(folder: Path) -> None:
    """Set the folder of the images."""
    global FOLDER
    FOLDER = folder


def _create(kind: str, count: int) -> Path:
    """Folder of a kind of images, which are created on first use."""
    marker = FOLDER / f"{kind}.made"
    if not marker.exists():
        with ProcessPoolExecutor() as pool:
            list(pool.map(_make, [(FOLDER, k, kind) for k in range(count)], chunksize=8))
        marker.touch()
    return FOLDER / kind


def _make(job: tuple[Path, int, str]) -> None:
    folder, number, kind = job
    name = CLASS_NAMES[number % CLASSES]
    image = Image.fromarray(demo_pixels(name, number=number // CLASSES))
    if kind == "photos":
        _save(image, folder / "photos" / name / f"{number:04}.jpg", 91)
        return
    scale = LARGE_PX if image.width > image.height else LARGE_PX[::-1]
    big = image.resize(scale, Image.Resampling.BICUBIC)
    _save(big, folder / "large" / name / f"{number:04}.jpg", 91)
    short = 128 / min(big.size)
    copy = big.resize((round(big.width * short), round(big.height * short)))
    _save(copy, folder / "small" / name / f"{number:04}.jpg", 91)


def _save(image: Image.Image, path: Path, quality: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    path.write_bytes(buffer.getvalue())
