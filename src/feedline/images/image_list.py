"""Images by their paths, with labels of any kind, as a source of rows.

Guarantees: those of `rows`; samples are numbered as the paths are; no file is looked at before it
is read, unless that is asked for.

Relies on: `labels` for what a label is, `tables` for CSV, Parquet and frames, `file_store` for the
rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.images.decode import DEFAULT_MAX_PIXELS, checked_decoding
from feedline.images.from_stores import FromStores
from feedline.images.from_tables import FromTables
from feedline.images.given_transform import GivenTransform, given_transform
from feedline.images.labels import check_repeats, labels_of
from feedline.images.listed_files import checked_paths, listed_images
from feedline.images.rows import RowPipeline
from feedline.remote.image_files import RemoteImages, no_files_here
from feedline.stores.file_store import FileStore
from feedline.stores.path_table import LabelledPaths

__all__ = ["ImageList"]

_NAMED = 5


class ImageList(FromStores, FromTables):
    """Images by their paths, each with its label; or those of tar shards, an LMDB, Hugging Face.

    A row is "image", uint8 (size, size, 3), RGB, and "label": int64 of a class; or, of other
    numbers, int64 or float32, of shape () or (k,).

    Args:
        paths: of the images, str or os.PathLike. A path may come more than once, with one label.
            Or URLs, such as "s3://bucket/a.jpg", of any protocol of fsspec's; what is fetched is
            kept here.
        labels: one for each path. Whole numbers are class numbers; texts are class names. Fractions
            become float32, and rows of k numbers int64 (k,), or float32 (k,) where one is a
            fraction: for regression, or several labels an image.
        transform: which part of an image becomes the row: `TrainCrop()`, the default, or
            `EvalCrop()`, or another transform, as of `ImageFolder`. It does not change labels.
        root: the folder that relative paths are relative to, or its URL; None for the working
            directory.
        classes: the names of the classes by number; None: the texts that occur, sorted.
        check: look now whether each file is there. Otherwise one that is missing is an ImageError
            when it is read.
        decode, exif, max_pixels: as of `ImageFolder`.
        local_dir, local_bytes, storage_options: of URLs; as of `ImageFolder`.

    Raises:
        DatasetError: there are no paths; a path comes with two different labels; with `check`, a
            file is missing.
        UsageError: a path is no text; some are URLs and others paths of this machine; labels are
            missing, of mixed types, NaN, or none of `classes`; an argument cannot be used. Names
            the sample.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        labels: Any,
        transform: GivenTransform | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | None = None,
        check: bool = False,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        local_dir: str | os.PathLike[str] | None = None,
        local_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        scaled = checked_decoding(decode, max_pixels)
        names = checked_paths(paths)

        def called(sample: int) -> str:
            return f"sample {sample}, {names[sample]!r},"

        found = labels_of(labels, len(names), classes, called)
        check_repeats(names, found.values, called)
        self.classes = found.classes
        self.root, store = listed_images(
            names,
            found.values,
            root,
            local_dir=local_dir,
            local_bytes=local_bytes,
            storage_options=storage_options,
        )
        crop = given_transform(transform)
        RowPipeline.__init__(
            self, store, crop, scaled=scaled, exif=bool(exif), max_pixels=max_pixels
        )
        if check:
            self._check_files()

    @property
    def files(self) -> FileStore[LabelledPaths]:
        """The images' files.

        Raises:
            UsageError: the images are no files of their own, or they are at URLs.
        """
        if isinstance(self.store, RemoteImages):
            raise no_files_here(self.root)
        if not isinstance(self.store, FileStore):
            raise UsageError(
                f"files are wanted here, and the images are of {self.store!r}, which holds them "
                "itself: leave `cache` out. feedline.build_cache makes a cache of them"
            )
        return self.store

    def path(self, sample: int) -> str:
        """The absolute path of a sample's file, to open it."""
        return os.fsdecode(self.files.path(sample))

    def originals(self) -> FileStore[LabelledPaths]:
        """The images' files, which may be at URLs; else raises as `files` does."""
        return self.store if isinstance(self.store, RemoteImages) else self.files

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The class numbers, by class name; a new dictionary each time."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def targets(self) -> np.ndarray[Any, Any]:
        """All labels, (n) or (n, k); a new array."""
        return np.array(self.store.labels)

    def _check_files(self) -> None:
        if isinstance(self.store, RemoteImages):
            missing = list(self.store.missing())
        else:
            paths = map(self.path, range(len(self)))
            missing = [path for path in paths if not os.path.isfile(path)]
        if missing:
            some = ", ".join(map(repr, missing[:_NAMED]))
            raise DatasetError(
                f"{len(missing)} of {len(self)} images are not there, or no files: {some}"
                f"{', ...' if len(missing) > _NAMED else ''}. Relative paths are relative to "
                f"{self.root!r}, or to `root` where it is given"
            )

    def __repr__(self) -> str:
        field = self.store.label_field
        labels = f"{len(self.classes)} classes" if self.classes else f"labels {field.dtype}"
        labels += f" {field.shape}" if field.shape else ""
        return (
            f"ImageList({self.root or self.store!r}, {self.transform!r}, "
            f"decode={'scaled' if self._scaled else 'exact'!r}): {len(self)} images, {labels}"
        )
