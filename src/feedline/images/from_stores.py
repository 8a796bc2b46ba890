"""Lists of images made of what holds them: a dataset of Hugging Face, tar shards, an LMDB.

Guarantees: nothing is unpacked or unpickled; a sample without its image or label is an error that
names it, or is counted.

Relies on: `stores` for what lies where, `labels` for what a label is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from feedline.errors import UsageError
from feedline.images.decode import DEFAULT_MAX_PIXELS, checked_decoding
from feedline.images.given_transform import GivenTransform, given_transform
from feedline.images.image_source import ImageSource
from feedline.images.labels import Labels, labels_of, ordered
from feedline.images.listed_entries import lmdb_entries
from feedline.images.listed_shards import sharded_samples
from feedline.images.rows import RowPipeline
from feedline.stores.file_store import FileStore
from feedline.stores.lmdb_store import LmdbStore
from feedline.stores.path_table import LabelledPaths
from feedline.stores.row_store import RowStore, rows_of
from feedline.stores.webdataset_store import WebDatasetStore

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FromStores", "ListStore"]

ListStore = FileStore[LabelledPaths] | RowStore | WebDatasetStore | LmdbStore


class FromStores(ImageSource[ListStore]):
    """Ways to make a list of images that are no files of their own."""

    classes: list[str]
    root: str
    left_out: tuple[tuple[str, str], ...] = ()
    """Of shards: the names of samples without an image or a label, and what they lack."""

    @classmethod
    def from_hf(
        cls,
        dataset: Any,
        image: str = "image",
        label: str = "label",
        *,
        transform: GivenTransform | None = None,
        classes: Sequence[str] | None = None,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = True,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> Self:
        """The images of a `datasets.Dataset` of Hugging Face, as they are encoded in it.

        What `set_transform` or `set_format` were told of the dataset has no say here.

        Args:
            dataset: one split, of which rows can be had by number.
            image: a column of the feature `Image`.
            label: a column of a `ClassLabel`, of numbers, texts, or rows of numbers; what they mean
                is said with `ImageList`.
            transform, decode, max_pixels: as of `ImageList`.
            classes: as of `ImageList`; those of a `ClassLabel` are known, and no others are taken.
            exif: turn images upright by their Exif orientation, as datasets does.

        Raises:
            DatasetError: it has no rows.
            UsageError: it is no such dataset, has no such column, or other classes; and as
                `ImageList`.
        """
        scaled = checked_decoding(decode, max_pixels)
        crop = given_transform(transform)
        rows, listed, names = rows_of(dataset, image, label)
        if names is not None and classes is not None and ordered(classes) != names:
            raise UsageError(
                f"classes={classes!r:.99} was given, and the column {label!r} has others, "
                f"{names!r:.99}: leave `classes` out; dataset.cast_column gives it new ones"
            )
        known = names if classes is None else classes
        found = labels_of(listed, len(rows), known, lambda sample: f"row {sample}")
        made = cls._of_store(RowStore(rows, image, found.values), found, "")
        RowPipeline.__init__(
            made, made.store, crop, scaled=scaled, exif=exif, max_pixels=max_pixels
        )
        return made

    @classmethod
    def from_webdataset(
        cls,
        shards: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        image: str = "jpg;jpeg;png;webp",
        label: str | None = "cls",
        *,
        incomplete: Literal["raise", "skip"] = "raise",
        transform: GivenTransform | None = None,
        classes: Sequence[str] | None = None,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> Self:
        """The images of tar shards of WebDataset, each read where it lies in its shard.

        A sample is files in a row whose names are alike up to the first dot behind the last slash,
        as webdataset groups them. They are numbered in the order of the shards, and read in any:
        shuffling, samplers and resume are as of a folder. A shard is looked through once; what
        lies where is kept beside it, or else in $XDG_CACHE_HOME or ~/.cache.

        Args:
            shards: paths of .tar files, not compressed: "train-{000000..000099}.tar",
                "train/*.tar", or a list of such.
            image: the endings of images, of which the first that a sample has counts.
            label: "cls", "txt" or another ending of files with a text; "json:label", or
                "json:about.label", a field of JSON; several with ";" between, of which the first
                that a sample has counts. Texts are whole numbers where all are, fractions where
                all are numbers, and else names of classes. None: all labels are 0.
            incomplete: a sample without image or label is an error, or is left out and listed in
                `left_out`.
            transform, classes, decode, exif, max_pixels: as of `ImageList`.

        Raises:
            DatasetError: a shard is missing, empty, damaged, cut off or compressed, or holds a key
                twice or a name that leads out of it; a sample lacks its image or label.
            UsageError: an argument cannot be used; and as `ImageList`.
        """
        scaled = checked_decoding(decode, max_pixels)
        crop = given_transform(transform)
        store, found, left_out = sharded_samples(shards, image, label, incomplete, classes)
        made = cls._of_store(store, found, store.folder.rstrip(os.sep) or os.sep)
        made.left_out = tuple(left_out)
        RowPipeline.__init__(
            made, made.store, crop, scaled=scaled, exif=exif, max_pixels=max_pixels
        )
        return made

    @classmethod
    def from_lmdb(
        cls,
        path: str | os.PathLike[str],
        keys: str | Sequence[str | bytes] | None = None,
        labels: Any | str | Callable[[str], Any] = None,
        *,
        check: bool = False,
        transform: GivenTransform | None = None,
        classes: Sequence[str] | None = None,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> Self:
        """The images of an LMDB whose values are the bytes of image files.

        It is opened read only and without a lock file, by each worker for itself, and must not be
        written to meanwhile. Values that are anything else, such as pickles, are an error.

        Args:
            path: the folder that holds its data.mdb, or such a file by another name.
            keys: of the images: a sequence of texts or bytes; or a pattern with one number, as
                "image-%09d", for all that fit it, by number; None for all that there are, sorted.
            labels: one for each key, as of `ImageList`; or a pattern such as "label-%09d" for
                entries of the same numbers, whose texts are read as those of a CSV; or a function
                of a key as text; None: all labels are 0.
            check: look now whether each key is there. Otherwise one that is missing is an
                ImageError when it is read.
            transform, classes, decode, exif, max_pixels: as of `ImageList`.

        Raises:
            DatasetError: it is not there, damaged, or no LMDB; it has no such entries, or others
                than images; a key comes with two labels; with `check`, a key is missing.
            UsageError: an argument cannot be used; and as `ImageList`.
        """
        scaled = checked_decoding(decode, max_pixels)
        crop = given_transform(transform)
        store, found = lmdb_entries(path, keys, labels, classes, check=check)
        made = cls._of_store(store, found, store.path)
        RowPipeline.__init__(
            made, made.store, crop, scaled=scaled, exif=exif, max_pixels=max_pixels
        )
        return made

    @classmethod
    def _of_store(cls, store: ListStore, found: Labels, root: str) -> Self:
        """A list that is to be made a pipeline."""
        made = cls.__new__(cls)
        made.store, made.classes, made.root = store, found.classes, root
        return made
