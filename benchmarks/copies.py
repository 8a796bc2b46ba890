"""Make smaller copies of an image folder, as users do before training."""

from __future__ import annotations

import io
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["jpeg_copies", "more_images", "raw_copies", "small", "without_restarts"]

_BICUBIC = Image.Resampling.BICUBIC


def _files(root: Path) -> list[tuple[Path, int]]:
    classes = sorted(path for path in root.iterdir() if path.is_dir())
    return [
        (path, label) for label, folder in enumerate(classes) for path in sorted(folder.iterdir())
    ]


def small(source: Path | io.BytesIO, shorter: int) -> Image.Image:
    """Resize an image to a shorter side of `shorter` pixels."""
    with Image.open(source) as image:
        scale = shorter / min(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        return image.convert("RGB").resize(size, _BICUBIC)


def _copy(job: tuple[Path, Path, int]) -> None:
    source, target, shorter = job
    target.parent.mkdir(parents=True, exist_ok=True)
    small(source, shorter).save(target, quality=90)


def _square(job: tuple[Path, int]) -> np.ndarray:
    image = small(*job)
    side = job[1]
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)))


def _without_restarts(job: tuple[Path, Path, Path, int]) -> None:
    copy, pixels, target, quality = job
    target.parent.mkdir(parents=True, exist_ok=True)
    if pixels.exists():
        image = Image.fromarray(np.load(pixels))
        image.save(target, "JPEG", quality=quality, subsampling="4:2:0")
    else:
        shutil.copyfile(copy, target)


def without_restarts(jpegs: Path, pixels: Path, quality: int, target: Path) -> Path:
    """Copy the JPEGs of a "folder" cache without restart markers; return the new folder.

    The pixels are identical. Decoders of the whole image are slower with restart markers, and
    copies made without feedline have none.

    Args:
        jpegs: folder of the JPEG copies.
        pixels: folder of a cache of raw pixels; an image missing there is copied unchanged.
        quality: JPEG quality.
        target: the folder to create.
    """
    files = [path.relative_to(jpegs) for path, _ in _files(jpegs)]
    jobs = [
        (jpegs / file, (pixels / file).with_suffix(".npy"), target / file, quality)
        for file in files
    ]
    with ProcessPoolExecutor() as pool:
        list(pool.map(_without_restarts, jobs, chunksize=16))
    return target


def more_images(root: Path, times: int, target: Path) -> Path:
    """Link each image of a folder `times` times under new names; return the new folder."""
    for path, _ in _files(root):
        (target / path.parent.name).mkdir(parents=True, exist_ok=True)
        for number in range(times):
            again = target / path.parent.name / f"{path.stem}-{number}{path.suffix}"
            try:
                os.link(path, again)
            except OSError:  # on another disk
                shutil.copyfile(path, again)
    return target


def jpeg_copies(root: Path, shorter: int, target: Path) -> Path:
    """Write JPEG copies of quality 90 with a shorter side of `shorter` px; return their folder."""
    jobs = [
        (path, target / path.parent.name / f"{path.stem}.jpg", shorter) for path, _ in _files(root)
    ]
    with ProcessPoolExecutor() as pool:
        list(pool.map(_copy, jobs, chunksize=16))
    return target


def raw_copies(root: Path, side: int, target: Path) -> Path:
    """Write the central squares as images.npy, with labels.npy; return their folder."""
    target.mkdir(parents=True)
    files = _files(root)
    with ProcessPoolExecutor() as pool:
        images = list(pool.map(_square, [(path, side) for path, _ in files], chunksize=16))
    np.save(target / "images.npy", np.stack(images))
    np.save(target / "labels.npy", np.array([label for _, label in files]))
    return target
