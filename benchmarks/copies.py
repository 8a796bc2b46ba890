"""Smaller copies of a folder of images, as users make them ahead of training."""

from __future__ import annotations

import io
import os
import shutil
from multiprocessing import Pool
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
    """An image with a shorter side of `shorter` pixels."""
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
    """The copies that a cache of format "folder" has, without restart markers; their folder.

    They have the same pixels. Decoders that read all of an image take longer with such markers, and
    people who make copies without feedline have none.

    Args:
        jpegs: the level's folder.
        pixels: that of a cache of raw pixels; an image that is not in it is copied as it is.
        quality: of the level.
        target: the folder to make.
    """
    files = [path.relative_to(jpegs) for path, _ in _files(jpegs)]
    jobs = [
        (jpegs / file, (pixels / file).with_suffix(".npy"), target / file, quality)
        for file in files
    ]
    with Pool() as pool:
        pool.map(_without_restarts, jobs, chunksize=16)
    return target


def more_images(root: Path, times: int, target: Path) -> Path:
    """A folder with each image of another so many times, under names of its own; its path."""
    for path, _ in _files(root):
        (target / path.parent.name).mkdir(parents=True, exist_ok=True)
        for number in range(times):
            again = target / path.parent.name / f"{path.stem}-{number}{path.suffix}"
            try:
                os.link(path, again)
            except OSError:  # another disk
                shutil.copyfile(path, again)
    return target


def jpeg_copies(root: Path, shorter: int, target: Path) -> Path:
    """JPEG copies, quality 90, with a shorter side of `shorter` px; their folder."""
    jobs = [
        (path, target / path.parent.name / f"{path.stem}.jpg", shorter) for path, _ in _files(root)
    ]
    with Pool() as pool:
        pool.map(_copy, jobs, chunksize=16)
    return target


def raw_copies(root: Path, side: int, target: Path) -> Path:
    """The central squares as one array, images.npy, and labels.npy; their folder."""
    target.mkdir(parents=True)
    files = _files(root)
    with Pool() as pool:
        images = pool.map(_square, [(path, side) for path, _ in files], chunksize=16)
    np.save(target / "images.npy", np.stack(images))
    np.save(target / "labels.npy", np.array([label for _, label in files]))
    return target
