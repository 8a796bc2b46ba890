"""A folder of images of all sorts, as torchvision's datasets read it, and rows of sources."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from feedline.images.compile.compile_dataset import compile_dataset
from feedline.order.batch_spec import Item

DRAW = "make_params" if hasattr(v2.Transform, "make_params") else "_get_params"
TRANSFORM = "transform" if hasattr(v2.Transform, "transform") else "_transform"
"""Name of the method that draws parameters; another one before torchvision 0.21."""
TENSOR_LEVELS = 0 if hasattr(torch, "uint16") else 1
"""Difference of resized uint8 tensors, in grey levels: torch 2.2 rounds them in another way."""


def image(seed: int, width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A gradient with some noise on it."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = smooth + rng.integers(-20, 21, smooth.shape)
    pixels = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
    return pixels.convert(mode) if mode != "RGB" else pixels


IMAGES = {
    "cats/a.jpg": (120, 90, "RGB"),
    "cats/b.png": (97, 131, "RGB"),
    "cats/grey.jpg": (75, 101, "L"),
    "dogs/deep/wide.jpg": (300, 81, "RGB"),
    "dogs/palette.png": (80, 80, "P"),
    "dogs/see-through.png": (64, 112, "RGBA"),
    "dogs/small.png": (33, 29, "RGB"),
}


def write_images(root):
    """Write them below `root`, and give it."""
    for number, (name, (width, height, mode)) in enumerate(IMAGES.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        options = {"quality": 92} if name.endswith("jpg") else {}
        image(number, width, height, mode).save(path, **options)
    return root


def pipeline_of(dataset):
    """The compiled pipeline of a dataset."""
    compiled = compile_dataset(dataset)
    assert compiled.pipeline is not None, compiled.reasons
    return compiled.pipeline


def refusal(dataset):
    """Reason why a dataset is not compiled."""
    compiled = compile_dataset(dataset)
    assert compiled.pipeline is None
    assert (compiled.fused, compiled.unchanged) == ((), ())
    (reason,) = compiled.reasons
    assert reason.endswith(".")
    return reason


class Strange:
    """An object whose attributes and text cannot be read."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __repr__(self):
        raise RuntimeError


def compiled_folder(root, *steps):
    """A folder of torchvision with a transform of some steps, and its compiled dataset."""
    transform = steps[0] if len(steps) == 1 else v1.Compose(list(steps))
    dataset = ImageFolder(str(root), transform)
    compiled = compile_dataset(dataset)
    assert compiled.pipeline is not None, compiled.reasons
    return dataset, compiled


def item_row(source, sample, size=None, seed=1, strength=1.0):
    """A row of a source: its image and its label."""
    size = size or source.image_size
    row = tuple(np.zeros(field.shape, field.dtype) for field in source.fields(size))
    source.load(Item(sample, size, seed, strength), row)
    return row


def pixel_error(ours, theirs):
    """Mean absolute difference of two arrays, in grey levels."""
    return np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)).mean()
