"""Pictures in files of all sorts, and pipelines, for the tests of compiled transforms."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from feedline.images.crops import Box
from torchvision_folder import DRAW, image

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def usual_pipeline(size: int = 32) -> v1.Compose:
    """An evaluation transform, without draws."""
    steps = [v1.Resize(size * 5 // 4), v1.CenterCrop(size), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    return v1.Compose(steps)


def random_pipeline(size: int = 32, *more: object) -> v2.Compose:
    """A training transform; `more` comes before the conversion to floats."""
    return v2.Compose(
        [
            *(v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), *more),
            *(v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)),
        ]
    )


@contextlib.contextmanager
def drawn(box: Box) -> Iterator[None]:
    """Let torchvision's crops and flips draw a placement of feedline's."""
    params = dict(zip(("top", "left", "height", "width"), box[:4], strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v1.RandomResizedCrop, "get_params", lambda *_: box[:4])
        patch.setattr(v2.RandomResizedCrop, DRAW, lambda *_: params)
        patch.setattr(torch, "rand", lambda *_: torch.tensor([0.0 if box.flip else 0.999]))
        yield


def seeded(seed: int, make: Callable[..., Any], *arguments: Any) -> Any:
    """Result of a call after seeding torch and numpy."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    return make(*arguments)


def own_step(picture: Image.Image) -> Image.Image:
    """A user-defined transform that draws from torch's and numpy's state."""
    shift = int(torch.randint(0, 9, ())) + int(np.random.randint(0, 9))
    return picture.point(lambda value: min(255, value + shift))


def encoded(picture: Image.Image, format: str = "JPEG", **options: object) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def opened(path: Path) -> Image.Image:
    """Open a file like torchvision's loader."""
    with path.open("rb") as file:
        return Image.open(file).convert("RGB")


def write_pictures(folder: Path) -> dict[str, Path]:
    """Write image files of every kind, by their peculiarity."""
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = Image.fromarray(np.arange(70 * 60, dtype=np.uint16).reshape(60, 70) * 15)
    more = [image(8, 60, 50), image(9, 60, 50)]
    files = {
        "plain.jpg": encoded(image(0, 120, 90), quality=92),
        "wide.jpg": encoded(image(1, 300, 81), quality=92),
        "progressive.jpg": encoded(image(2, 90, 120), quality=92, progressive=True),
        "grey.jpg": encoded(image(3, 75, 101, "L"), quality=92),
        "cmyk.jpg": encoded(image(4, 75, 101, "CMYK"), quality=92),
        "turned.jpg": encoded(image(5, 80, 60), quality=92, exif=exif),
        "frames.mpo": encoded(more[0], "MPO", save_all=True, append_images=more[1:]),
        "plain.png": encoded(image(6, 97, 131), "PNG"),
        "palette.png": encoded(image(7, 80, 80, "P"), "PNG"),
        "see-through.png": encoded(image(8, 64, 112, "RGBA"), "PNG"),
        "deep.png": encoded(deep, "PNG"),
        "frames.gif": encoded(more[0], "GIF", save_all=True, append_images=more[1:]),
        "plain.webp": encoded(image(9, 70, 90), "WEBP"),
        "JPEG named.png": encoded(image(10, 70, 90), quality=92),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in files}


class Pictures(Dataset):
    """Paths and a transform that reads them: a list from a table, as users write it."""

    def __init__(self, paths: list[str], transform: object) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> object:
        return self.transform(self.paths[index])
