"""Smaller copies of a folder of images, as users make them ahead of training."""

from __future__ import annotations

from multiprocessing import Pool
from pathlib import Path

import numpy as np
from PIL import Image

__all__ = ["jpeg_copies", "raw_copies"]

_BICUBIC = Image.Resampling.BICUBIC


def _files(root: Path) -> list[tuple[Path, int]]:
    classes = sorted(path for path in root.iterdir() if path.is_dir())
    return [
        (path, label) for label, folder in enumerate(classes) for path in sorted(folder.iterdir())
    ]


def _small(source: Path, shorter: int) -> Image.Image:
    with Image.open(source) as image:
        scale = shorter / min(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        return image.convert("RGB").resize(size, _BICUBIC)


def _copy(job: tuple[Path, Path, int]) -> None:
    source, target, shorter = job
    target.parent.mkdir(parents=True, exist_ok=True)
    _small(source, shorter).save(target, quality=90)


def _square(job: tuple[Path, int]) -> np.ndarray:
    image = _small(*job)
    side = job[1]
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return np.asarray(image.crop((left, top, left + side, top + side)))


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
