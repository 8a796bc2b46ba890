"""Images by their paths, with labels of any kind, as a source of rows.

Guarantees: those of `rows`; samples have the order of the paths; no file is accessed before it is
read, unless `check=True`.

Relies on: `labels` for labels, `tables` for CSV, Parquet and DataFrames, `file_store` for the rest.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from feedline.errors import DatasetError, UsageError
from feedline.images.codecs import DEFAULT_MAX_PIXELS, check_decoding
from feedline.images.from_stores import FromStores
from feedline.images.from_tables import FromTables
from feedline.images.labels import check_repeats, labels_of
from feedline.images.listed_files import checked_paths, listed_images
from feedline.images.rows import ImageTransform, RowPipeline, check_transform
from feedline.remote.image_files import RemoteImages, no_files_here
from feedline.sources.file_store import FileStore
from feedline.sources.path_table import LabelledPaths

__all__ = ["ImageList"]

_NAMED = 5


class ImageList(FromStores, FromTables):
    """Images by their paths, each with its label; or those of tar shards, an LMDB, Hugging Face.

    A row is "image", uint8 (size, size, 3), RGB, and "label": int64 of a class; or, of other
    numbers, int64 or float32, of shape () or (k,).

    Args:
        paths: paths of the images, str or os.PathLike. A path may be repeated with the same label.
            Or URLs of any fsspec protocol, e.g. "s3://bucket/a.jpg"; fetched files are kept
            locally.
        labels: one per path. Whole numbers are class indices; texts are class names. Floats become
            float32, and rows of k numbers int64 (k,), or float32 (k,) if one is a float: for
            regression or multi-label.
        transform: crop, `TrainCrop()` (default) or `EvalCrop()`, or another transform, as in
            `ImageFolder`. Does not change labels.
        root: folder or URL for relative paths; None for the working directory.
        classes: class names by index; None: the texts that occur, sorted.
        check: check now that each file exists. Otherwise a missing one raises an ImageError when it
            is read.
        decode, exif, max_pixels: as in `ImageFolder`.
        local_dir, local_bytes, storage_options: for URLs, as in `ImageFolder`.

    Raises:
        DatasetError: there are no paths; a path has two different labels; with `check`, a file is
            missing.
        UsageError: a path is not text; URLs and local paths are mixed; labels are missing, of mixed
            types, NaN, or not in `classes`; an argument is invalid. The message names the sample.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        labels: Any,
        transform: ImageTransform | None = None,
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
        scaled = check_decoding(decode, max_pixels)
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
        crop = check_transform(transform)
        RowPipeline.__init__(
            self, store, crop, scaled=scaled, exif=bool(exif), max_pixels=max_pixels
        )
        if check:
            self._check_files()

    @property
    def files(self) -> FileStore[LabelledPaths]:
        """Files of the images.

        Raises:
            UsageError: the images are not separate files, or they are at URLs.
        """
        if isinstance(self.store, RemoteImages):
            raise no_files_here(self.root)
        if not isinstance(self.store, FileStore):
            raise UsageError(
                f"image files are needed here, but the images are inside {self.store!r}: remove "
                "cache=. Use feedline.build_cache to make a cache of them"
            )
        return self.store

    def path(self, sample: int) -> str:
        """Absolute path of a sample's file."""
        return os.fsdecode(self.files.path(sample))

    def originals(self) -> FileStore[LabelledPaths]:
        """Files of the images, possibly at URLs; otherwise raises like `files`."""
        return self.store if isinstance(self.store, RemoteImages) else self.files

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class indices by name; a new dictionary each time."""
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
                f"{len(missing)} of {len(self)} images are missing or not files: "
                f"{some}{', ...' if len(missing) > _NAMED else ''}. Relative paths are relative to "
                f"{self.root!r}; set root= to change that"
            )

    def __repr__(self) -> str:
        field = self.store.label_field
        labels = f"{len(self.classes)} classes" if self.classes else f"labels {field.dtype}"
        labels += f" {field.shape}" if field.shape else ""
        return (
            f"ImageList({self.root or self.store!r}, {self.transform!r}, "
            f"decode={'scaled' if self._scaled else 'exact'!r}): {len(self)} images, {labels}"
        )
