"""Images by their paths, with labels of any kind, as a source of rows.

Guarantees: those of `rows`; samples have the order of the paths; no file is accessed before it is
read, unless `check=True`; errors in a table name it. Of containers nothing is unpacked or
unpickled; a sample without its image or label raises an error that names it, or is counted.

Relies on: `sources` for the stores, their labels and tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from feedline.errors import DatasetError, UsageError
from feedline.images.codec_base import DEFAULT_MAX_PIXELS, DecodeOptions
from feedline.images.codec_registry import DecodeArguments, codec_of, decode_options
from feedline.images.folder import ImageFiles
from feedline.images.rows import ImageTransform, RowPipeline, check_transform
from feedline.sources.column_types import Labels, convert_labels, ordered, warn_of_repeats
from feedline.sources.folder import IMAGE_EXTENSIONS, FileStore
from feedline.sources.lmdb_store import LmdbStore, lmdb_samples
from feedline.sources.remote_images import RemoteStore
from feedline.sources.rows import RowStore, hf_rows
from feedline.sources.store import first_names
from feedline.sources.tables import (
    Table,
    checked_paths,
    path_store,
    read_csv,
    read_frame,
    read_parquet,
)
from feedline.sources.webdataset import WebDatasetStore, webdataset_samples

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

ListStore = FileStore | RowStore | WebDatasetStore | LmdbStore


class ImageList(ImageFiles[ListStore]):
    """Images by their paths, each with its label; or those of tar shards, an LMDB, Hugging Face.

    A row is "image", uint8 (size, size, 3), RGB, unless `mode` says otherwise, and "label": int64
    of a class; or, of other numbers, int64 or float32, of shape () or (k,).

    Args:
        paths: paths of the images, str or os.PathLike. A path may be repeated, e.g. for each object
            or annotator; if its classes differ, a warning says so. Or URLs of any fsspec protocol,
            e.g. "s3://bucket/a.jpg"; fetched files are kept locally.
        labels: one per path: a sequence, an array, a tensor, or a column of pandas, polars or
            pyarrow. Whole numbers are class indices; texts are class names. Floats become float32,
            and rows of k numbers int64 (k,), or float32 (k,) if one is a float: for regression or
            multi-label. NaN is a value of floats; for single numbers a warning counts them.
        transform: crop, `TrainCrop()` (default) or `EvalCrop()`, or another transform, as in
            `ImageFolder`. Does not change labels.
        root: folder or URL for relative paths; None for the working directory.
        classes: class names by index; None: the order that the labels declare (categories of
            pandas, a polars Enum, an ordered Arrow dictionary), with unused ones; or else the texts
            that occur, sorted.
        separator: text between class names, e.g. " " for labels such as "cat dog", or "" for an
            image without a class. Labels become float32 (len(classes),), 1.0 for each class of the
            image and otherwise 0.0.
        check: check now that each file exists. Otherwise a missing one raises an ImageError when it
            is read.
        mode, decode, exif, max_pixels: as in `ImageFolder`; the default mode is "RGB".
        local_dir, local_bytes, storage_options: for URLs, as in `ImageFolder`.

    Raises:
        DatasetError: there are no paths; with `check`, a file is missing.
        UsageError: a path is not text; URLs and local paths are mixed; labels are missing, of mixed
            types, or not in `classes`; an argument is invalid. The message names the sample.
    """

    skipped_samples: tuple[tuple[str, str], ...] = ()
    """Samples of shards that were skipped without an image or a label, and the reasons."""

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        labels: Any,
        transform: ImageTransform | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | None = None,
        separator: str | None = None,
        check: bool = False,
        mode: Literal["RGB", "L", "I;16"] = "RGB",
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
        local_dir: str | os.PathLike[str] | None = None,
        local_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        options = decode_options(mode, decode, exif, max_pixels)
        names = checked_paths(paths)

        def describe(sample: int) -> str:
            return f"sample {sample}, {names[sample]!r},"

        converted = convert_labels(labels, len(names), classes, describe, separator)
        warn_of_repeats(names, converted.values, describe)
        self.classes = converted.classes
        self.root, store = path_store(
            names,
            converted.values,
            root,
            local_dir=local_dir,
            local_bytes=local_bytes,
            storage_options=storage_options,
        )
        super().__init__(store, check_transform(transform), options)
        if check:
            self._check_files()

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        image: str = "path",
        label: str | Sequence[str] = "label",
        *,
        transform: ImageTransform | None = None,
        root: str | os.PathLike[str] | None = None,
        sep: str = ",",
        **options: Any,
    ) -> Self:
        """Images listed in a CSV file, in its order.

        Args:
            path: UTF-8 file whose first line names the columns.
            image: column of the paths.
            label: column of the labels; or a list of columns of numbers, which form a row together.
                A column holds whole numbers if all cells are, floats if all are numbers, and
                otherwise class names; with `classes`, names, or whole numbers if no cell is a name.
                An empty cell is NaN in a list of columns and among floats.
            transform: as in `ImageList`.
            root: folder or URL for relative paths; None for the CSV file's folder.
            sep: separator of cells.
            options: `classes`, `separator` (of class names in a cell, e.g. " "), `check`, `mode`,
                `decode`, `exif`, `max_pixels`, `local_dir`, `local_bytes`, `storage_options`, as in
                `ImageList`.

        Raises:
            DatasetError: the file cannot be read or has no rows; and as `ImageList`.
            UsageError: there is no such column; numbers and texts are mixed; and as `ImageList`.
        """
        classes, separator = options.get("classes"), options.get("separator")
        table = read_csv(path, image, label, sep=sep, classes=classes, separator=separator)
        return cls._of_table(table, transform, _folder_of(path) if root is None else root, options)

    @classmethod
    def from_parquet(
        cls,
        path: str | os.PathLike[str],
        image: str = "path",
        label: str | Sequence[str] = "label",
        *,
        transform: ImageTransform | None = None,
        root: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Images whose paths a Parquet file lists; arguments and errors as in `from_csv`.

        Categories of pandas and polars Enums that the file declares are the classes, in their
        order, as in `from_frame`. A file with the bytes of images is for `from_hf`.

        Needs pyarrow: `pip install "feedline[parquet]"`.
        """
        in_order = options.get("classes") is None and options.get("separator") is None
        table = read_parquet(path, image, label, in_order=in_order)
        return cls._of_table(table, transform, _folder_of(path) if root is None else root, options)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        image: str = "path",
        label: str | Sequence[str] = "label",
        *,
        transform: ImageTransform | None = None,
        root: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Images listed in a pandas or polars DataFrame.

        Arguments and errors are those of `from_csv`; relative paths are relative to the working
        directory, unless `root` is given. For a column of pandas' categories or of a polars Enum
        these are the classes, in their order, with those that no row has; polars' Categorical
        declares no order, so its classes are sorted.
        """
        return cls._of_table(read_frame(frame, image, label), transform, root, options)

    @classmethod
    def from_hf(
        cls,
        dataset: Any,
        image: str = "image",
        label: str = "label",
        *,
        transform: ImageTransform | None = None,
        classes: Sequence[str] | None = None,
        root: str | os.PathLike[str] | None = None,
        **options: Unpack[DecodeArguments],
    ) -> Self:
        """Images of a Hugging Face `datasets.Dataset`, in their encoded form.

        `set_transform` and `set_format` of the dataset have no effect here.

        Args:
            dataset: one split, with random access to rows.
            image: column with the feature `Image`.
            label: column of a `ClassLabel`, of numbers, texts, or rows of numbers; see `ImageList`.
            transform: as in `ImageList`.
            classes: as in `ImageList`; not for a `ClassLabel`, whose names are known. datasets
                drops the order of pandas' categories.
            root: folder of the images of rows that have a path but no bytes, as in a dataset of
                "imagefolder". Without it, and outside of it, such rows raise an ImageError.
            options: `mode`, `decode`, `exif`, `max_pixels`, as in `ImageList`; but images are
                rotated by their Exif orientation unless `exif=False`, as by datasets.

        Raises:
            DatasetError: it has no rows.
            UsageError: it is not such a dataset, has no such column, or other classes; and as
                `ImageList`.
        """
        decoding = decode_options(**{"exif": True, **options})
        transform = check_transform(transform)
        rows, labels, names = hf_rows(dataset, image, label)
        if names is not None and classes is not None and ordered(classes) != names:
            raise UsageError(
                f"{classes!r:.99} differ from those of the column {label!r}, {names!r:.99}",
                argument="classes",
                hint="remove it; use dataset.cast_column for new classes",
            )
        known = names if classes is None else classes
        converted = convert_labels(labels, len(rows), known, lambda sample: f"row {sample}")
        store = RowStore(rows, image, converted.values, root)
        return cls._of_store(store, converted, "", transform, decoding)

    @classmethod
    def from_webdataset(
        cls,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        image: str = "jpg;jpeg;png;webp",
        label: str | None = "cls",
        *,
        incomplete: Literal["raise", "skip"] = "raise",
        transform: ImageTransform | None = None,
        classes: Sequence[str] | None = None,
        **options: Unpack[DecodeArguments],
    ) -> Self:
        """Images of WebDataset tar shards, read directly from the shards.

        A sample consists of consecutive files whose names are equal up to the first dot after the
        last slash, as in webdataset. Samples are indexed in the order of the shards and read in any
        order: shuffling, samplers and resume work as for a folder. Each shard is scanned once; its
        index is cached next to it or in $XDG_CACHE_HOME or ~/.cache.

        Args:
            shards: paths of uncompressed .tar files: "train-{000000..000099}.tar", "train/*.tar",
                or a list of such.
            image: file extensions of images, in order of preference.
            label: "cls", "txt" or another extension of text files; "json:label" or
                "json:about.label", a field of JSON; several separated by ";", in order of
                preference. Texts become whole numbers if all are, floats if all are numbers, and
                otherwise class names. None: all labels are 0.
            incomplete: "raise" an error for a sample without image or label, or "skip" it and list
                it in `skipped_samples`.
            transform, classes: as in `ImageList`.
            options: `mode`, `decode`, `exif`, `max_pixels`, as in `ImageList`.

        Raises:
            DatasetError: a shard is missing, empty, damaged, truncated or compressed, or contains a
                duplicate key or a name that leads out of it; a sample lacks its image or label.
            UsageError: an argument is invalid; and as `ImageList`.
        """
        decoding = decode_options(**options)
        transform = check_transform(transform)
        store, labels, skipped_samples = webdataset_samples(
            shards, image, label, incomplete, classes
        )
        root = store.folder.rstrip(os.sep) or os.sep
        images = cls._of_store(store, labels, root, transform, decoding)
        images.skipped_samples = tuple(skipped_samples)
        return images

    @classmethod
    def from_lmdb(
        cls,
        path: str | os.PathLike[str],
        keys: str | Sequence[str | bytes] | None = None,
        labels: Any | str | Callable[[str], Any] = None,
        *,
        check: bool = False,
        transform: ImageTransform | None = None,
        classes: Sequence[str] | None = None,
        **options: Unpack[DecodeArguments],
    ) -> Self:
        """Images of an LMDB whose values are the bytes of image files.

        Each worker opens it read-only and without a lock file; it must not be written to meanwhile.
        Other values, e.g. pickles, raise an error.

        Args:
            path: folder with its data.mdb, or such a file with another name.
            keys: keys of the images: a sequence of texts or bytes; or a pattern with one number,
                e.g. "image-%09d", for all matching keys, by number; None for all keys, sorted.
            labels: one per key, as in `ImageList`; or a pattern such as "label-%09d" for entries
                with the same numbers, whose texts, below 1 KiB, are read like those of a CSV;
                or a function of a key as text; None: all labels are 0.
            check: check now that each key exists. Otherwise a missing one raises an ImageError when
                it is read.
            transform, classes: as in `ImageList`.
            options: `mode`, `decode`, `exif`, `max_pixels`, as in `ImageList`.

        Raises:
            DatasetError: it is missing, damaged, or not an LMDB; it has no such entries, or they
                are not images; a key has two labels; with `check`, a key is missing.
            UsageError: an argument is invalid; and as `ImageList`.
        """
        decoding = decode_options(**options)
        transform = check_transform(transform)
        store, converted = lmdb_samples(path, keys, labels, classes, check=check, is_image=codec_of)
        return cls._of_store(store, converted, store.path, transform, decoding)

    @classmethod
    def _of_table(
        cls,
        table: Table,
        transform: ImageTransform | None,
        root: str | os.PathLike[str] | None,
        options: dict[str, Any],
    ) -> Self:
        if table.classes is not None and options.get("classes") is None:
            options = {**options, "classes": table.classes}
        try:
            return cls(table.images, table.labels, transform, root=root, **options)
        except UsageError as error:  # DatasetError is one
            raise type(error).of(error, str(table.where)) from error

    @classmethod
    def _of_store(
        cls,
        store: ListStore,
        labels: Labels,
        root: str,
        transform: Any,
        options: DecodeOptions,
    ) -> Self:
        images = cls.__new__(cls)
        images.classes, images.root = labels.classes, root
        RowPipeline.__init__(images, store, transform, options)
        return images

    def _check_files(self) -> None:
        if isinstance(self.store, RemoteStore):
            missing = list(self.store.missing())
        else:
            paths = map(self.path, range(len(self)))
            missing = [path for path in paths if not os.path.isfile(path)]
        if missing:
            raise DatasetError(
                f"{len(missing)} of {len(self)} images are missing or not files: "
                f"{first_names(missing)}. Relative paths are relative to {self.root!r}; set root= "
                "to change that"
            )

    def __repr__(self) -> str:
        field = self.store.label_field
        labels = f"{len(self.classes)} classes" if self.classes else f"labels {field.dtype}"
        labels += f" {field.shape}" if field.shape else ""
        return (
            f"ImageList({self.root or self.store!r}, {self.transform!r}, "
            f"decode={self.options.decode!r}): {len(self)} images, {labels}"
        )


def _folder_of(path: str | os.PathLike[str]) -> str:
    return os.path.dirname(os.path.abspath(os.path.expanduser(os.fspath(path))))


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Find the given images, and those in the given folders, recursively, sorted; DatasetError if a
    path does not exist, or there is no image.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_file():
            found.append(path)
        elif path.is_dir():
            inside = (each for each in path.rglob("*") if each.is_file())
            found += sorted(each for each in inside if each.suffix.lower() in IMAGE_EXTENSIONS)
        else:
            raise DatasetError(f"{path}: no such file or folder")
    if not found:
        raise DatasetError(
            f"no images in {', '.join(map(str, paths))}; image names end in "
            f"{', '.join(IMAGE_EXTENSIONS)}"
        )
    return found
