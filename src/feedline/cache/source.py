"""Source of a cache: original images at a path or URL, or of a store or map-style Dataset.

Guarantees: the kind of a path follows from its files; an unsupported one raises an error that lists
the supported kinds. A changed image has another stamp, if its store detects changes; an unreachable
server is a DatasetError, so that its images do not count as broken. Any exception of a Dataset, and
any result that is not an image, becomes an ImageError; a sample is read once for its image and
label.

Relies on: a Dataset without random augmentation, which returns the same for a number each time.
"""

from __future__ import annotations

import functools
import glob
import itertools
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from feedline.errors import DatasetError, ImageError, StorageError, UsageError, hide_secrets
from feedline.images.codec_registry import codec_of
from feedline.images.compile.datasets import FolderSelection, file_store
from feedline.images.compile.library_steps import CompileError
from feedline.images.folder import ImageFolder
from feedline.images.image_list import ImageList
from feedline.order.batch_spec import Field
from feedline.sources.archives import COMPRESSED
from feedline.sources.arrays import checked_labels
from feedline.sources.files import is_storage_failure
from feedline.sources.folder import (
    IMAGE_EXTENSIONS,
    FileStore,
    folder_store,
    scan_folder,
    split_hint,
    splits_in,
)
from feedline.sources.manifest import MANIFEST, Manifest
from feedline.sources.remote_files import THREADS, LocalFolder, RemoteFolder
from feedline.sources.remote_filesystem import is_url
from feedline.sources.remote_images import is_unreachable, url_folder_store
from feedline.sources.rows import IMAGE_NAMES, LABEL_NAMES, ParquetStore, first_of
from feedline.sources.store import PathTable, Pixels, SampleStore, check_unique_keys, first_names
from feedline.sources.webdataset import webdataset_source

_KINDS = {".tar": "tar", ".parquet": "parquet", ".arrow": "arrow"}


@dataclass(frozen=True)
class CacheSource:
    """Original images of a store. Pickled once and sent to every worker."""

    store: SampleStore
    where: str
    classes: Sequence[str] | None

    @property
    def kind(self) -> str:
        """Kind of the source in the cache's manifest."""
        return self.store.kind

    def __len__(self) -> int:
        return len(self.store)

    def read(self, sample: int) -> bytes | Pixels:
        """Return an image, encoded or as uint8 (height, width, 3), RGB.

        Raises an ImageError that does not name it, or a DatasetError if the whole source is
        unreachable.
        """
        try:
            image = self.store.read(sample, 0)
        except ImageError as error:
            if is_unreachable(error):
                raise DatasetError.of(error) from error
            raise
        # A proxy's error page must not be cached.
        if self.store.is_remote and isinstance(image, bytes) and codec_of(image) is None:
            return self.store.reload(sample, image) or image
        return image

    def read_ahead(
        self, samples: Iterable[int]
    ) -> Iterator[tuple[int, Callable[[], bytes | Pixels]]]:
        """Yield samples with a function that returns the image or raises its error, as `read`.

        Remote images are read in threads, `THREADS` ahead at most.
        """
        if not self.store.is_remote:
            yield from ((sample, functools.partial(self.read, sample)) for sample in samples)
            return
        threads, remaining = ThreadPoolExecutor(THREADS), iter(samples)
        waiting: deque[tuple[int, Future[bytes | Pixels]]] = deque()
        try:
            while True:
                for sample in itertools.islice(remaining, THREADS - len(waiting)):
                    waiting.append((sample, threads.submit(self.read, sample)))
                if not waiting:
                    return
                sample, image = waiting.popleft()
                yield sample, image.result
        finally:
            threads.shutdown(wait=False, cancel_futures=True)


def open_source(source: Any, *, check_splits: bool = True) -> CacheSource:
    """Open a source: a path or URL, see `_open_originals`; a `feedline.ImageFolder` or `ImageList`;
    or a map-style Dataset of (image, label). Without `check_splits`, train/ and val/ are two
    classes.
    """
    if isinstance(source, str | os.PathLike):
        if check_splits and (splits := list_splits(source)):
            raise UsageError(split_hint(hide_secrets(os.fspath(source)), splits))
        return _open_originals(source)
    if isinstance(source, ImageFolder):
        _check_no_cache(source.root, is_cache=os.path.exists(os.path.join(source.root, MANIFEST)))
        return CacheSource(source.originals(), source.root, source.classes)
    if isinstance(source, ImageList):
        if isinstance(source.store, FileStore):
            files = source.store.without_repeats()
            _warn_of_other_labels(source.store, files)
            return CacheSource(files, source.root, source.classes or None)
        check_unique_keys(source.store)
        return CacheSource(source.store, repr(source.store), source.classes or None)
    if isinstance(source, Mapping):
        raise UsageError(
            f"a cache is built from one dataset, got a {type(source).__name__} of "
            f"{first_names(list(source))}",
            hint="pass one of its values",
        )
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        store = DatasetStore(source)
        return CacheSource(store, store.where, store.classes)
    raise UsageError(
        "a cache is built from a path (a folder of class folders, tar shards of WebDataset, "
        f"Parquet files) or a map-style Dataset of (image, label), got {type(source).__name__}"
    )


def open_cache_source(where: str, manifest: Manifest, source: Any) -> CacheSource:
    """Open the source of an existing cache: the one from the user, or that of its manifest."""
    if source is not None:
        return open_source(source)
    kind, path = manifest.source
    if kind == "dataset":
        raise UsageError(
            f"the cache {where!r} was built from a Dataset, {path}, which has no path",
            hint="pass the Dataset in Python, as source=",
        )
    try:
        return open_source(path, check_splits=False)
    except DatasetError as error:
        raise DatasetError(
            f"the cache {where!r} was built from {path!r}: {error.message}",
            hint="if it has moved, pass its new path",
            fix={"source": "DIR"},
        ) from error


_WANTED = (
    "a PIL image, a numpy array, uint8 of shape (height, width, 3) or (height, width), or a torch "
    "tensor, uint8 of shape (3, height, width) or (1, height, width)"
)


class DatasetStore(SampleStore):
    """The samples of a map-style Dataset in its order.

    A sample is (image, label), or a dict with these entries, as in Hugging Face's datasets. Labels
    are numbers, or arrays of numbers with the shape and dtype of sample 0's. Images are used as
    returned, without Exif rotation. The attribute "classes", a list of str, has the class names.

    Changes of an image are not detected: all stamps are 0, so a continued build reuses samples of
    the same name and label. It reads all samples once more for their labels, unless torchvision
    keeps a list of them.
    """

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
            raise DatasetError.of(
                error,
                f"sample 0 of the dataset {self.where}, whose label sets the dtype and shape of "
                "all labels, cannot be read",
            ) from error
        self.label_field = Field("label", first.dtype.name, first.shape)
        self._labels = _listed_labels(dataset, first)
        self._paths = _paths(dataset)
        self.classes = _classes(dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, sample: int, side: int) -> Pixels:
        image, label = self._sample(sample)
        if Field("label", label.dtype.name, label.shape) != self.label_field:
            raise ImageError(
                f"its label is {label.dtype} of shape {label.shape}, but that of sample 0 is "
                f"{self.label_field.dtype} of shape {self.label_field.shape}; all must be equal"
            )
        return _pixels(image)

    def label(self, sample: int) -> Any:
        """Return the label of a sample; an ImageError if the sample cannot be read."""
        return self._sample(sample)[1] if self._labels is None else self._labels[sample]

    def name(self, sample: int) -> str:
        """Return the relative path in a torchvision folder, or the number in other datasets."""
        if self._paths is None:
            return f"{sample:08d}"
        return self._paths.name(sample).decode("utf-8", "backslashreplace")

    def _sample(self, sample: int) -> tuple[Any, Any]:
        """Return the image as returned by the dataset, and the label as a NumPy value."""
        if self._last is None or self._last[0] != sample:
            try:
                given = self._dataset[sample]
            except Exception as error:
                kind = StorageError if is_storage_failure(error) else ImageError
                raise kind(f"the dataset raised {type(error).__name__}: {error}") from error
            image, label = _parts(given)
            try:
                self._last = sample, image, checked_labels([label], 1)[0]
            except UsageError as error:
                raise ImageError.of(error, "its label is not supported") from error
        return self._last[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


def _warn_of_other_labels(rows: FileStore, files: FileStore) -> None:
    """Warn if rows of a repeated image have other labels than the first, which a cache stores."""
    if len(files) == len(rows):
        return
    first = {files.key(sample): files.label(sample) for sample in range(len(files))}
    others = sum(
        not np.array_equal(rows.label(sample), first[rows.key(sample)], equal_nan=True)
        for sample in range(len(rows))
    )
    if others:
        warnings.warn(
            f"a cache stores each image once, with its first label: {others} of {len(rows)} rows "
            "have another one. For all rows pass the list itself to the loader, with cache=",
            stacklevel=4,
        )


def _parts(sample: Any) -> tuple[Any, Any]:
    """Split a sample into image and label."""
    if isinstance(sample, Mapping):
        image, label = first_of(IMAGE_NAMES, sample), first_of(LABEL_NAMES, sample)
        if image is not None and label is not None:
            return sample[image], sample[label]
        got = f"a dict of {', '.join(map(repr, list(sample)[:9])) or 'nothing'}"
    elif isinstance(sample, (tuple, list)):
        if len(sample) == 2:
            return sample[0], sample[1]
        got = f"a {type(sample).__name__} of {len(sample)}"
    else:
        got = f"a {type(sample).__name__}"
    raise ImageError(
        f"a sample must be (image, label), or a dict with one of "
        f"{', '.join(map(repr, IMAGE_NAMES))} and one of {', '.join(map(repr, LABEL_NAMES))}; "
        f"got {got}"
    )


def _pixels(image: Any) -> Pixels:
    """Convert an image to uint8 (height, width, 3), RGB."""
    pixels: Pixels | None = None
    if isinstance(image, Image.Image):
        try:
            if "transparency" in image.info:  # convert() would warn, or search for colours in it
                image = image.copy()
                del image.info["transparency"]
            return np.asarray(image.convert("RGB"))
        except Exception as error:  # the file is decoded here
            raise ImageError(f"Pillow raised {type(error).__name__}: {error}") from error
    if isinstance(image, torch.Tensor) and image.dtype == torch.uint8:
        if image.ndim == 3 and image.shape[0] in (1, 3):
            pixels = image.numpy(force=True).transpose(1, 2, 0)
    elif (
        isinstance(image, np.ndarray)
        and image.dtype == np.uint8
        and (image.ndim == 2 or image.shape[2:] == (3,))
    ):
        pixels = image[:, :, None] if image.ndim == 2 else image
    if pixels is None:
        given, hint = f"a {type(image).__name__}", ""
        if isinstance(image, (torch.Tensor, np.ndarray)):
            given += f", {str(image.dtype).removeprefix('torch.')} of shape {tuple(image.shape)}"
            if "float" in str(image.dtype):
                hint = (
                    ". Floats come from a transform such as ToTensor: build from the dataset "
                    "without its transform, and apply it to the images of the cache"
                )
        raise ImageError(f"expected {_WANTED}, got {given}{hint}")
    if 0 in pixels.shape:
        raise ImageError(f"the image has no pixels: shape {tuple(image.shape)}")
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _listed_labels(dataset: Any, first: Any) -> np.ndarray[Any, Any] | None:
    """Return the labels that a torchvision dataset keeps in a list, which reads no image."""
    is_torchvision = type(dataset).__module__.startswith("torchvision.datasets.")
    if not is_torchvision or getattr(dataset, "target_transform", None) is not None:
        return None
    try:
        labels = checked_labels(dataset.targets, len(dataset))
    except (AttributeError, UsageError):
        return None
    alike = (labels[0].dtype, labels[0].shape) == (first.dtype, first.shape)
    return labels if alike and np.array_equal(labels[0], first) else None


def _paths(dataset: Any) -> PathTable | None:
    """Return the relative paths of a torchvision DatasetFolder; None if two are equal."""
    module: Any = sys.modules.get("torchvision.datasets.folder")
    if module is None or not isinstance(dataset, module.DatasetFolder):
        return None
    try:
        store = file_store(FolderSelection([dataset], None))
    except CompileError:
        return None
    below_root = store.folder != b""
    different = len(set(store.paths.blob.tobytes().split(b"\0"))) == len(dataset) + 1
    return store.paths if below_root and different else None


def _classes(dataset: Any) -> list[str] | None:
    """Return the class names by torchvision's or Hugging Face's convention."""
    names = getattr(dataset, "classes", None)
    features = getattr(dataset, "features", None)
    if names is None and isinstance(features, Mapping):
        names = getattr(features.get(first_of(LABEL_NAMES, features)), "names", None)
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return list(names)
    return None


def _open_originals(path: str | os.PathLike[str]) -> CacheSource:
    """Open original images at a path, or a URL supported by fsspec, such as "s3://bucket/train": a
    folder of class folders; one with tar shards of WebDataset or Parquet files at any depth; one
    such file, or a pattern such as "data/train-*.parquet".
    """
    folder: LocalFolder | RemoteFolder
    if is_url(path):
        folder = RemoteFolder(os.fspath(path))
        where = str(folder)
    else:
        where = os.path.abspath(os.path.expanduser(os.fspath(path)))
        folder = LocalFolder(where)
    _check_no_cache(where, is_cache=folder.has(MANIFEST))
    names: list[str] = []
    if _kind(where) or glob.has_magic(where):
        folder, names = folder.matches()
    if names:
        kind, *others = sorted(set(map(_kind, names)))
        if others:
            raise DatasetError(f"{where!r} matches files of several kinds, {first_names(names)}")
    elif (kind := _kind_of_folder(folder.walk())) in ("tar", "parquet"):
        names = sorted(
            name
            for name in folder.files()
            if _kind(name) == kind and "/." not in f"/{os.path.dirname(name)}"
        )
    if kind == "tar":
        shards, classes = webdataset_source(folder, names)
        return CacheSource(shards, where, classes)
    if kind == "parquet":
        rows = ParquetStore(folder, names)
        return CacheSource(rows, where, rows.classes)
    if kind == "arrow":
        raise DatasetError(
            f"{where!r} holds Arrow files (save_to_disk of Hugging Face's datasets), which are not "
            "supported",
            hint="write Parquet files with dataset.to_parquet(...), or pass the dataset of "
            "datasets.load_from_disk to feedline.build_cache",
        )
    if kind == "compressed":
        raise DatasetError(
            f"{where!r} holds compressed tar files, which do not allow reading single images",
            hint="decompress them to .tar files first, e.g. with gunzip",
        )
    if names:
        raise DatasetError(
            f"{where!r} matches files that are neither tar shards nor Parquet files",
            hint="pass a folder of class folders, or such files",
        )
    if isinstance(folder, RemoteFolder):
        images = url_folder_store(folder.url, IMAGE_EXTENSIONS)
        return CacheSource(images, where, images.paths.classes)
    index = scan_folder(where)
    return CacheSource(folder_store(where, index), where, index.classes)


def list_splits(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the split folders below a path or URL, "train" first; [] if none."""
    folder: LocalFolder | RemoteFolder = LocalFolder(os.path.expanduser(os.fspath(path)))
    if is_url(path):
        folder = RemoteFolder(os.fspath(path))
        if _kind(folder.url) or glob.has_magic(folder.url):
            return []
    return splits_in(folder.listed()[0], folder.listed)


def _check_no_cache(where: str, *, is_cache: bool) -> None:
    """Raise a UsageError if a path is a cache."""
    if is_cache:
        raise UsageError(
            f"{where!r} is a cache, and copies of copies lose quality",
            hint="build from its source, which `feedline cache info` prints",
        )


def _kind(name: str) -> str:
    """Kind of a file by its extension; "" if unknown."""
    lower = name.lower()
    if lower.endswith(COMPRESSED):
        return "compressed"
    ending = os.path.splitext(lower)[1]
    return "image" if ending in IMAGE_EXTENSIONS else _KINDS.get(ending, "")


def _kind_of_folder(steps: Iterable[tuple[str, list[str], list[str]]]) -> str:
    """Kind of the first known files in a folder and below it, from steps as of os.walk, whose lists
    of folders select the folders to enter.
    """
    found = ""
    for number, (_, folders, files) in enumerate(steps):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        kinds = set(map(_kind, files))
        for kind in _KINDS.values():
            if kind in kinds:
                return kind
        # An image directly in the folder belongs to no class.
        if "image" in kinds and number:
            return "image"
        if "compressed" in kinds:  # may be the archive of the class folders
            found = "compressed"
    return found
