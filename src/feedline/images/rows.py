"""From a store of images to rows: decode, place the crop, resize, write.

Guarantees: a row depends on the image, the transform and the item alone; an image that cannot be
read or decoded raises an ImageError that names the sample; only the part of a JPEG that the crop
needs is decoded; a pickle carries no buffers; several threads may load at once.

Relies on: a `store` for bytes or pixels, `decode`, `crops` and `resize` for the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from feedline.errors import ImageError, UsageError
from feedline.images.crops import Transform, wanted_side
from feedline.images.decode import DEFAULT_MAX_PIXELS, ThreadsDecoder
from feedline.images.placement import Placement, cut
from feedline.images.resize import fill
from feedline.images.stable_repr import without_addresses
from feedline.order.batch_spec import Field, Item
from feedline.sources.cache_layout import level_size, repair_command
from feedline.sources.cache_store import CacheStore
from feedline.sources.cached_files import CachedFiles, cache_within
from feedline.sources.chosen_store import ChosenStore
from feedline.sources.file_store import FileStore
from feedline.sources.reading import reading
from feedline.sources.store import Pixels, SampleStore
from feedline.trace import stage_timer

Store = TypeVar("Store", bound=SampleStore)

__all__ = ["RowPipeline", "Store"]


class RowPipeline(Generic[Store]):
    """Images of a store as a source of rows: "image", uint8 (size, size, 3), and "label".

    Args:
        store: images and labels.
        transform: selects the visible part of an image.
        scaled: decode a JPEG at a reduced size if the part still has the row's size.
        exif: rotate images by their Exif orientation.
        max_pixels: maximum number of pixels in an image's header.
    """

    def __init__(
        self,
        store: Store,
        transform: Transform,
        *,
        scaled: bool = False,
        exif: bool = False,
        max_pixels: int = DEFAULT_MAX_PIXELS,
    ) -> None:
        self.store = store
        self.transform = transform
        self._scaled = scaled
        self.exif = exif
        self._max_pixels = max_pixels
        self._begin()

    def cached(self, cache: CacheStore) -> RowPipeline[Any]:
        """The same rows, from the smaller copies of the same files in a cache.

        Raises:
            UsageError: it lacks some of the images, or they are not files.
        """
        other: RowPipeline[Any] = copy.copy(self)
        files = self.originals()
        cache.check_exif(self.exif)
        other.store = CachedFiles(files, cache)
        other.exif = False  # copies stand as they should
        other._begin()
        return other

    def originals(self) -> FileStore[Any]:
        """Files of the images, of which a cache may hold copies.

        Raises:
            UsageError: the images are not files.
        """
        store: Any = self.store
        if isinstance(store, FileStore):
            return store
        if isinstance(store, ChosenStore) and isinstance(store.store, FileStore):
            return store.store.chosen(store.numbers)
        raise UsageError(
            f"cache= needs images that are files of a folder, but {type(self).__name__} stores its "
            "images elsewhere; remove cache="
        )

    @property
    def has_originals(self) -> bool:
        """True if the images are files, of which a cache may hold copies."""
        store: Any = self.store
        if isinstance(store, ChosenStore):
            store = store.store
        return isinstance(store, FileStore | CachedFiles)

    def _begin(self) -> None:
        """Create what is not pickled."""
        self._is_open = False
        self._threads = ThreadsDecoder(max_pixels=self._max_pixels, exif=self.exif)

    def __len__(self) -> int:
        return len(self.store)

    def open(self, worker: int, workers: int) -> None:
        """Start a worker with its id and the number of workers. Elsewhere the first row does it."""
        self.store.open()
        self._is_open = True

    def close(self) -> None:
        """Release resources after the last row in this process."""
        self._is_open = False
        self.store.close()

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels, which must be given.

        Raises:
            UsageError: the store has no images that are large enough.
        """
        assert image_size is not None, "stored images have no common size"
        self.level_at(image_size)
        return Field("image", "uint8", (image_size, image_size, 3)), self.store.label_field

    def level_at(self, image_size: int) -> str:
        """Resolution of the copies for rows of this size, as text; "" for the originals.

        Raises:
            UsageError: the store has none that are large enough.
        """
        return self.store.check_side(self.wanted_side(image_size))

    def wanted_side(self, image_size: int) -> int:
        """Shorter side in pixels of an image that is large enough for rows of this size."""
        return wanted_side(self.transform, image_size)

    @property
    def copies_from(self) -> str:
        """Location of the copies that rows are made of, as text; "" for the originals."""
        cache = cache_within(self.store)
        return "" if cache is None else cache.location.in_words()

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """Prepare for rows that are about to be loaded: fetch remote images together."""
        prepare = getattr(self.store, "prepare", None)
        if prepare is not None:
            assert image_size is not None, "stored images have no common size"
            prepare(samples, self.wanted_side(image_size))

    def load(self, item: Item, row: tuple[np.ndarray[Any, Any], ...]) -> None:
        """Fill one row: arrays as in `fields`, C-contiguous, written in place.

        Raises:
            ImageError: the image cannot be read or decoded; names it. The row is then undefined.
            IndexError: there is no such sample.
        """
        image, placement = self._part(item)
        fill(row[0], image, placement)
        row[1][()] = self.store.label(item.sample)
        if stage_timer.timed:
            stage_timer.end_stage("resize")
        retouch = getattr(self.transform, "retouch", None)
        if retouch is not None:
            retouch(row[0], item)

    def _part(self, item: Item) -> tuple[Pixels, Placement]:
        """Visible part of the image, valid until the next one, and its placement."""
        if not self._is_open:
            self.open(0, 1)
        try:
            wanted = wanted_side(self.transform, item.required_image_size)
            with reading:
                image = self.store.read(item.sample, wanted)
            if stage_timer.timed:
                stage_timer.end_stage("read")
            if not isinstance(image, np.ndarray):
                try:
                    return self._decoded(image, item)
                except ImageError:
                    anew = getattr(self.store, "anew", None)
                    with reading:
                        other = None if anew is None else anew(item.sample, image)
                    if other is not None:
                        return self._decoded(other, item)
                    rescued = self._rescued(image)
                    if rescued is None:
                        raise
                    image = rescued
            placement = self._placement(image.shape[0], image.shape[1], item)
        except ImageError as error:
            raise ImageError.of(
                error, f"sample {item.sample}, {self.name(item.sample)}, cannot be loaded"
            ) from error
        return cut(image, placement.part), placement

    def _decoded(self, data: bytes, item: Item) -> tuple[Pixels, Placement]:
        decoder = self._threads.decoder
        height, width = decoder.open(data)
        placement = self._placement(height, width, item)
        by = 1
        if self._scaled and decoder.reducible:
            by = placement.shrink(height, width, item.required_image_size)
            placement = placement.on(-(-height // by), -(-width // by), of=(height, width))
        part = decoder.read(by, placement.part)
        if stage_timer.timed:
            stage_timer.end_stage("decode")
            stage_timer.note_decoded(height, width)
        return part, placement

    def _placement(self, height: int, width: int, item: Item) -> Placement:
        """Placement in an image of (height, width) pixels that was read.

        Raises:
            ImageError: it is not a copy of an original of the indexed size.
        """
        original = self.store.original_size(item.sample)
        if original is None or original == (height, width):
            return self.transform.place(height, width, item)
        if level_size(*original, min(height, width)) != (height, width):
            cache = cache_within(self.store)
            raise ImageError(
                f"size mismatch: its copy has {width} x {height} pixels, the original in the "
                f"cache's index {original[1]} x {original[0]}. The index is damaged or from "
                "another cache",
                hint=repair_command(cache.root) if cache else "",
            )
        return self.transform.place(*original, item).on(height, width, of=original)

    def _rescued(self, data: bytes) -> Pixels | None:
        """Pixels of an image that the decoder rejected, for another reader."""
        return None

    def name(self, sample: int) -> str:
        """Name of a sample in messages."""
        return self.store.name(sample)

    def fingerprint(self) -> str:
        """Short hash of the samples, their order and labels, independent of the transform.

        For files it hashes the paths below the dataset's folder, so a moved folder has the same; it
        reads none of them: 1.3 million samples of an ImageFolder take about 25 ms.
        """
        return self.store.fingerprint()

    @property
    def uses_strength(self) -> bool:
        """True if the crop depends on an item's strength."""
        return bool(getattr(self.transform, "uses_strength", True))

    def transform_identity(self) -> str:
        """Description of everything that determines a row's pixels: equal in every process."""
        decode = "scaled" if self._scaled else "exact"
        form = self.store.form()
        return without_addresses(
            f"{self.transform!r}, decode={decode!r}, exif={self.exif}" + (form and f", {form}")
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_threads"], state["_is_open"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
