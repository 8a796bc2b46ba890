"""Image lists from containers: a Hugging Face dataset, tar shards, an LMDB.

Guarantees: nothing is unpacked or unpickled; a sample without its image or label raises an error
that names it, or is counted.

Relies on: `sources` for the containers' indexes, `labels` for labels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from feedline.errors import UsageError
from feedline.images.codecs import DEFAULT_MAX_PIXELS, check_decoding
from feedline.images.labels import Labels, labels_of, ordered
from feedline.images.listed_entries import lmdb_entries
from feedline.images.listed_shards import sharded_samples
from feedline.images.rows import ImageSource, ImageTransform, RowPipeline, check_transform
from feedline.sources.file_store import FileStore
from feedline.sources.lmdb_store import LmdbStore
from feedline.sources.path_table import LabelledPaths
from feedline.sources.row_store import RowStore, rows_of
from feedline.sources.webdataset_store import WebDatasetStore

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FromStores", "ListStore"]

ListStore = FileStore[LabelledPaths] | RowStore | WebDatasetStore | LmdbStore


class FromStores(ImageSource[ListStore]):
    """Constructors of image lists from containers."""

    classes: list[str]
    root: str
    left_out: tuple[tuple[str, str], ...] = ()
    """Of shards: skipped samples without an image or a label, and the reasons."""

    @classmethod
    def from_hf(
        cls,
        dataset: Any,
        image: str = "image",
        label: str = "label",
        *,
        transform: ImageTransform | None = None,
        classes: Sequence[str] | None = None,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = True,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> Self:
        """Images of a Hugging Face `datasets.Dataset`, in their encoded form.

        `set_transform` and `set_format` of the dataset have no effect here.

        Args:
            dataset: one split, with random access to rows.
            image: column with the feature `Image`.
            label: column of a `ClassLabel`, of numbers, texts, or rows of numbers; see `ImageList`.
            transform, decode, max_pixels: as in `ImageList`.
            classes: as in `ImageList`; not for a `ClassLabel`, whose names are known.
            exif: rotate images by their Exif orientation, as datasets does.

        Raises:
            DatasetError: it has no rows.
            UsageError: it is not such a dataset, has no such column, or other classes; and as
                `ImageList`.
        """
        scaled = check_decoding(decode, max_pixels)
        crop = check_transform(transform)
        rows, listed, names = rows_of(dataset, image, label)
        if names is not None and classes is not None and ordered(classes) != names:
            raise UsageError(
                f"classes={classes!r:.99} differ from those of the column {label!r}, "
                f"{names!r:.99}: remove classes=; use dataset.cast_column for new ones"
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
        transform: ImageTransform | None = None,
        classes: Sequence[str] | None = None,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
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
                it in `left_out`.
            transform, classes, decode, exif, max_pixels: as in `ImageList`.

        Raises:
            DatasetError: a shard is missing, empty, damaged, truncated or compressed, or contains a
                duplicate key or a name that leads out of it; a sample lacks its image or label.
            UsageError: an argument is invalid; and as `ImageList`.
        """
        scaled = check_decoding(decode, max_pixels)
        crop = check_transform(transform)
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
        transform: ImageTransform | None = None,
        classes: Sequence[str] | None = None,
        decode: Literal["exact", "scaled"] = "exact",
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> Self:
        """Images of an LMDB whose values are the bytes of image files.

        Each worker opens it read-only and without a lock file; it must not be written to meanwhile.
        Other values, e.g. pickles, raise an error.

        Args:
            path: folder with its data.mdb, or such a file with another name.
            keys: keys of the images: a sequence of texts or bytes; or a pattern with one number,
                e.g. "image-%09d", for all matching keys, by number; None for all keys, sorted.
            labels: one per key, as in `ImageList`; or a pattern such as "label-%09d" for entries
                with the same numbers, whose texts are read like those of a CSV; or a function of a
                key as text; None: all labels are 0.
            check: check now that each key exists. Otherwise a missing one raises an ImageError when
                it is read.
            transform, classes, decode, exif, max_pixels: as in `ImageList`.

        Raises:
            DatasetError: it is missing, damaged, or not an LMDB; it has no such entries, or they
                are not images; a key has two labels; with `check`, a key is missing.
            UsageError: an argument is invalid; and as `ImageList`.
        """
        scaled = check_decoding(decode, max_pixels)
        crop = check_transform(transform)
        store, found = lmdb_entries(path, keys, labels, classes, check=check)
        made = cls._of_store(store, found, store.path)
        RowPipeline.__init__(
            made, made.store, crop, scaled=scaled, exif=exif, max_pixels=max_pixels
        )
        return made

    @classmethod
    def _of_store(cls, store: ListStore, found: Labels, root: str) -> Self:
        """Create a list for a pipeline."""
        made = cls.__new__(cls)
        made.store, made.classes, made.root = store, found.classes, root
        return made
