"""A torchvision dataset's files and pipeline as a source of rows.

Guarantees: a row depends on the file, the recipe and the item alone; it is what torchvision's
pipeline makes of the image, for one of its random draws; a file that torchvision's loader reads is
read; what cannot be decoded is an ImageError that names the file; several threads may load at once;
a pickle carries the paths out of band and no buffers.

Relies on: `recipe` for what the pipeline means, `paths` for the files, `decode` and `ways` for
the pixels, `finish` for what follows them.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Any

import numpy as np

from feedline.errors import ImageError
from feedline.images.crops import Pixels, cut
from feedline.images.decode import Decoder
from feedline.images.files import read_file
from feedline.images.paths import LabelledPaths
from feedline.images.resize_mode import fill_as
from feedline.plan.row import Field, Item
from feedline.plan.seeds import extend
from feedline.recognition.pillow_reading import PillowSettings, read_with_pillow
from feedline.recognition.transform_reader import Recipe

__all__ = ["ImagePipeline"]

_STEPS = 1
"""Sets the random numbers of the steps that run as they are apart from the crop's."""


class ImagePipeline:
    """The images of a recognised dataset; `recognise` makes it.

    A row is "image", (channels, size, size) as the pipeline gives it, and "label", int64.

    Args:
        paths: the samples' files and labels.
        folder: what stands before each path, in the file system's bytes: an absolute path that
            ends with a separator, or nothing.
        recipe: what is made of an image.
        settings: which files Pillow reads.
    """

    def __init__(
        self, paths: LabelledPaths, folder: bytes, recipe: Recipe, settings: PillowSettings
    ) -> None:
        self.recipe = recipe
        self._paths = paths
        self._folder = folder
        self._settings = settings
        self._threads = _ThreadsOwn(settings.max_pixels)

    @property
    def image_size(self) -> int:
        """The side of the pipeline's own output, in pixels: what an item gets that asks for 0."""
        return self.recipe.image_size

    def __len__(self) -> int:
        return len(self._paths)

    def fields(self, image_size: int) -> tuple[Field, ...]:
        """The arrays of a row at this image size, in pixels; 0 for the pipeline's own."""
        finish = self.recipe.finish
        image_size = image_size or self.image_size
        return (
            Field("image", finish.dtype, (finish.channels, image_size, image_size)),
            Field("label", "int64", ()),
        )

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row.

        Args:
            item: which sample, how large, with which seed.
            row: arrays as `fields` says, C-contiguous: written over where they lie.

        Raises:
            ImageError: the file cannot be read or decoded; names it. The row is then undefined.
            IndexError: there is no such sample.
            Exception: whatever a step that runs as it is raises.
        """
        sample = item.sample
        if sample < 0:  # as a list counts, which torchvision has its samples in
            sample += len(self)
        if not item.image_size:
            item = item._replace(image_size=self.image_size)
        name = self._paths.name(sample)
        try:
            data = read_file(self._folder + name)
            pixels = self._pixels(data, item)
        except ImageError as error:
            raise ImageError(
                f"sample {sample}, {self.name(sample)}, cannot be loaded: {error}"
            ) from error
        self.recipe.finish.write(pixels, extend(item.seed, _STEPS), row[0])
        row[1][()] = self._paths.labels[sample]

    def _pixels(self, data: bytes, item: Item) -> Pixels:
        """The part of the image that the row shows, uint8 (size, size, 3), until the next one."""
        decoder = self._threads.decoder
        crop = self.recipe.crop
        try:
            height, width = decoder.open(data)
            placement = crop.place(height, width, item)
            image = decoder.read(1, placement.part)
        except ImageError:
            # Stricter than Pillow, and so than torchvision, about files that are cut short.
            try:
                whole = read_with_pillow(data, self._settings)
            except Exception:
                whole = None
            if whole is None:
                raise
            placement = crop.place(whole.shape[0], whole.shape[1], item)
            image = cut(whole, placement.part)
        pixels = self._threads.square(item.image_size)
        fill_as(self.recipe.resize_mode, pixels, image, placement)
        return pixels

    def name(self, sample: int) -> str:
        """The absolute path of a sample's file, to print it: bytes that are no text escaped."""
        return (self._folder + self._paths.name(sample)).decode("utf-8", "backslashreplace")

    @property
    def targets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The label of every sample, int64 (n); a new array each time."""
        return self._paths.labels.astype(np.int64)

    def fingerprint(self) -> str:
        """A short hash of the samples' paths within the dataset's folder, their order and labels.

        The same for a moved folder and for any pipeline.
        """
        digest = hashlib.blake2b(f"{len(self)}\n".encode(), digest_size=8)
        digest.update(self._paths.blob.data)
        digest.update(self._paths.labels.astype("<i8").data)
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_threads"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._threads = _ThreadsOwn(self._settings.max_pixels)

    def __repr__(self) -> str:
        recipe = self.recipe
        as_is = f"; as they are: {_short(recipe.as_is)}" if recipe.as_is else ""
        return (
            f"ImagePipeline({os.fsdecode(self._folder)!r}, {_short(recipe.fast)}{as_is}): "
            f"{len(self)} images to {recipe.finish.dtype}, {self.image_size} px"
        )


def _short(steps: tuple[str, ...]) -> str:
    return ", ".join(step.partition("(")[0] for step in steps)


class _ThreadsOwn(threading.local):
    """A decoder and memory for one square image, for each thread."""

    def __init__(self, max_pixels: int) -> None:
        self.decoder = Decoder(max_pixels=max_pixels)
        self._memory = np.empty(0, np.uint8)

    def square(self, side: int) -> Pixels:
        """Memory for an image, uint8 (side, side, 3): the same at every call."""
        size = side * side * 3
        if len(self._memory) < size:
            self._memory = np.empty(size, np.uint8)
        return self._memory[:size].reshape(side, side, 3)
