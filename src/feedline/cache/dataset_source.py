"""A map-style Dataset as what a cache is made of.

Guarantees: whatever the dataset raises or gives that is no image is an ImageError; a sample is
asked for once, though its image and its label are; it works from worker processes, forked or not.

Relies on: a dataset that gives the same for a number each time, without random augmentation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.cache.columns import IMAGE_NAMES, LABEL_NAMES, named
from feedline.cache.source import Stamp, evenly
from feedline.errors import DatasetError, ImageError, UsageError
from feedline.plan.row import Field
from feedline.recognition.folders import Chosen
from feedline.recognition.samples import store_of
from feedline.recognition.steps import NotRecognised
from feedline.stores.array_store import checked_labels
from feedline.stores.path_table import LabelledPaths
from feedline.stores.store import Pixels

__all__ = ["DatasetSource"]

_WANTED = (
    "a PIL image, a numpy array, uint8 of shape (height, width, 3) or (height, width), or a torch "
    "tensor, uint8 of shape (3, height, width) or (1, height, width)"
)


class DatasetSource:
    """The samples of a map-style Dataset, in its order.

    A sample is (image, label), or a dict with these entries, as Hugging Face's datasets give it.
    The labels are numbers, or arrays of numbers of one shape and dtype: those of sample 0. Images
    are taken as the dataset gives them, so none is turned by its Exif orientation.

    A change of an image cannot be seen: all stamps are 0. A build that goes on where another was
    broken off takes samples of the same name and label for the same. It looks at the labels of all
    samples, for which they are read once more, but where torchvision keeps a list of them.

    Args:
        dataset: has `__len__` and `__getitem__`; "classes", a list of str, if it has that, are
            the names of the classes.

    Raises:
        DatasetError: it is empty, or sample 0 cannot be read or has no such label.
    """

    kind = "dataset"

    def __init__(self, dataset: Any) -> None:
        self.where = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
        self._dataset = dataset
        self._last: tuple[int, Any, Any] | None = None
        self._labels: np.ndarray[Any, Any] | None = None
        if not len(dataset):
            raise DatasetError(f"the dataset {self.where} has no samples")
        try:
            first = self._sample(0)[1]
        except ImageError as error:
            raise DatasetError(
                f"sample 0 of the dataset {self.where} cannot be read, and its label says of which "
                f"dtype and shape all labels are: {error}"
            ) from error
        self.label_field = Field("label", first.dtype.name, first.shape)
        self._labels = _listed_labels(dataset, first)
        self._paths = _paths(dataset)
        self.classes = _classes(dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def some(self, count: int) -> list[int]:
        """About so many samples, evenly spread."""
        return evenly(len(self), count)

    def ahead(self, samples: Iterable[int]) -> None:
        """Nothing: when a dataset may be asked is not known."""

    def read(self, sample: int) -> Pixels:
        """The pixels of an image."""
        image, label = self._sample(sample)
        if Field("label", label.dtype.name, label.shape) != self.label_field:
            raise ImageError(
                f"its label is {label.dtype} of shape {label.shape}, and that of sample 0 is "
                f"{self.label_field.dtype} of shape {self.label_field.shape}: all must be alike"
            )
        return _pixels(image)

    def label(self, sample: int) -> Any:
        """The label of a sample.

        Raises:
            ImageError: the sample cannot be read.
        """
        return self._sample(sample)[1] if self._labels is None else self._labels[sample]

    def name(self, sample: int) -> str:
        """The path of a file below a torchvision folder; of other datasets the number."""
        if self._paths is None:
            return f"{sample:08d}"
        return self._paths.name(sample).decode("utf-8", "backslashreplace")

    def path(self, sample: int) -> str:
        """Nothing: where a dataset has its samples is not known."""
        return ""

    def stamp(self, sample: int) -> Stamp:
        """0: a change cannot be seen."""
        return 0

    def _sample(self, sample: int) -> tuple[Any, Any]:
        """The image as it is given, and the label as a number or an array of numpy's."""
        if self._last is None or self._last[0] != sample:
            try:
                given = self._dataset[sample]
            except Exception as error:
                raise ImageError(f"the dataset raised {type(error).__name__}: {error}") from error
            image, label = _parts(given)
            try:
                self._last = sample, image, checked_labels([label], 1)[0]
            except UsageError as error:
                raise ImageError(f"its label cannot be kept: {error}") from error
        return self._last[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def _parts(sample: Any) -> tuple[Any, Any]:
    """The image and the label of a sample."""
    if isinstance(sample, Mapping):
        image, label = named(IMAGE_NAMES, sample), named(LABEL_NAMES, sample)
        if image is not None and label is not None:
            return sample[image], sample[label]
        said = f"a dict of {', '.join(map(repr, list(sample)[:9])) or 'nothing'}"
    elif isinstance(sample, (tuple, list)):
        if len(sample) == 2:
            return sample[0], sample[1]
        said = f"a {type(sample).__name__} of {len(sample)}"
    else:
        said = f"a {type(sample).__name__}"
    raise ImageError(
        f"a sample of the dataset is {said}, and must be (image, label) or a dict with one of "
        f"{', '.join(map(repr, IMAGE_NAMES))} and one of {', '.join(map(repr, LABEL_NAMES))}"
    )


def _pixels(image: Any) -> Pixels:
    """An image as uint8 (height, width, 3), RGB."""
    pixels: Pixels
    if isinstance(image, Image.Image):
        try:
            if "transparency" in image.info:  # convert() would warn, or look for colours in it
                image = image.copy()
                del image.info["transparency"]
            return np.asarray(image.convert("RGB"))
        except Exception as error:  # the file is decoded only now
            raise ImageError(f"Pillow raised {type(error).__name__}: {error}") from error
    if isinstance(image, torch.Tensor) and image.dtype == torch.uint8:
        if image.ndim != 3 or image.shape[0] not in (1, 3):
            raise _no_image(image)
        pixels = image.numpy(force=True).transpose(1, 2, 0)
    elif isinstance(image, np.ndarray) and image.dtype == np.uint8:
        if image.ndim != 2 and image.shape[2:] != (3,):
            raise _no_image(image)
        pixels = image[:, :, None] if image.ndim == 2 else image
    else:
        raise _no_image(image)
    if 0 in pixels.shape:
        raise ImageError(f"the image, of shape {tuple(image.shape)}, has no pixels")
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _no_image(image: Any) -> ImageError:
    given = f"a {type(image).__name__}"
    hint = ""
    if isinstance(image, (torch.Tensor, np.ndarray)):
        given += f", {str(image.dtype).removeprefix('torch.')} of shape {tuple(image.shape)}"
        floats = image.is_floating_point() if torch.is_tensor(image) else image.dtype.kind == "f"
        if floats:
            hint = (
                ". Floats are what a transform such as ToTensor gives: build from the dataset "
                "without its transform, and transform what is read from the cache"
            )
    return ImageError(f"the image is {given}, and must be {_WANTED}{hint}")


def _listed_labels(dataset: Any, first: Any) -> np.ndarray[Any, Any] | None:
    """The labels that a dataset of torchvision's has in a list, for which no image is read."""
    if not type(dataset).__module__.startswith("torchvision.datasets."):
        return None
    if getattr(dataset, "target_transform", None) is not None:
        return None
    try:
        labels = checked_labels(dataset.targets, len(dataset))
    except (AttributeError, UsageError):
        return None
    alike = (labels[0].dtype, labels[0].shape) == (first.dtype, first.shape)
    return labels if alike and np.array_equal(labels[0], first) else None


def _paths(dataset: Any) -> LabelledPaths | None:
    """The paths of a torchvision DatasetFolder, relative to its root; None where two are alike."""
    module: Any = sys.modules.get("torchvision.datasets.folder")
    if module is None or not isinstance(dataset, module.DatasetFolder):
        return None
    try:
        store = store_of(Chosen([dataset], None))
    except NotRecognised:
        return None
    below_root = store.folders != (b"",)
    different = len(set(store.paths.blob.tobytes().split(b"\0"))) == len(dataset) + 1
    return store.paths if below_root and different else None


def _classes(dataset: Any) -> list[str] | None:
    """What the classes are called, by torchvision's convention or by that of Hugging Face."""
    names = getattr(dataset, "classes", None)
    features = getattr(dataset, "features", None)
    if names is None and isinstance(features, Mapping):
        names = getattr(features.get(named(LABEL_NAMES, features)), "names", None)
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return list(names)
    return None
