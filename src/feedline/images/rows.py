"""Image sources: from a store of images to rows: decode, place the crop, resize, write.

Guarantees: a row depends on the image, the transform and the item alone; an image that cannot be
read or decoded raises an ImageError that names the sample; only the part of a JPEG that the crop
needs is decoded; a pickle carries no buffers; several threads may load at once. A transform of
another library, or any function of an image, is kept unchanged: the loader compiles it, or the
source is a map-style Dataset, whose samples are the transform's output and a label.

Relies on: a `store` for bytes or pixels, `codec_registry`, `crops` and `resize` for the rest.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from PIL import Image

from feedline.errors import ImageError, UsageError, note
from feedline.images.codec_base import DecodeOptions
from feedline.images.codec_registry import ThreadDecoder, added_codecs, register_codecs
from feedline.images.crops import (
    Placement,
    TrainCrop,
    Transform,
    Window,
    check_value,
    cut,
    wanted_side,
    without_addresses,
)
from feedline.images.resize import fill, fill_rows
from feedline.order.batch_spec import Field, Item, Items
from feedline.order.pixel_layout import MODES, RGB, PixelLayout
from feedline.sources.archives import ArchiveStore
from feedline.sources.cache_store import CachedFiles, CacheStore, cache_within
from feedline.sources.files import storage_read
from feedline.sources.folder import FileStore
from feedline.sources.manifest import level_size, repair_command
from feedline.sources.store import (
    Numbers,
    Pixels,
    SampleStore,
    SelectedStore,
    all_within,
    check_index,
)
from feedline.timing.stage_timer import stage_timer

if TYPE_CHECKING:
    from typing_extensions import Self

Store = TypeVar("Store", bound=SampleStore)

ImageTransform: TypeAlias = Transform | Callable[..., Any]
"""A feedline crop; or a function of an image, such as a torchvision pipeline."""


def is_crop(transform: object) -> bool:
    """Return True for a transform that places a crop."""
    return not isinstance(transform, type) and callable(getattr(transform, "place", None))


def check_transform(transform: object, *, only_crops: bool = False) -> Any:
    """Check that a user's transform is a crop or, unless `only_crops`, a function of an image.

    Returns it; `TrainCrop()` for None.
    """
    if transform is None:
        return TrainCrop()
    is_function = callable(transform) and not isinstance(transform, type) and not only_crops
    expected = "TrainCrop(...) or EvalCrop(...)"
    if not only_crops:
        expected += ", a torchvision or timm pipeline, feedline.compile(...) or feedline.views(...)"
    check_value("transform", transform, is_crop(transform) or is_function, expected)
    return transform


def _unselected(store: SampleStore) -> SampleStore:
    return store.store if isinstance(store, SelectedStore) else store


def check_cache_mode(cache: CacheStore, layout: PixelLayout) -> None:
    """Raise a UsageError if the copies of a cache have another layout than a source."""
    if layout != cache.manifest.layout:
        raise UsageError(
            f"{layout.mode or str(layout)!r} does not match the cache {cache.root!r}, whose copies "
            f"are {cache.manifest.mode!r}: build another cache",
            argument="mode",
        )


class RowPipeline(Generic[Store]):
    """Images of a store as a source of rows: "image", (size, size, channels), and "label".

    Args:
        store: images and labels.
        transform: selects the visible part of an image.
        options: settings for decoding the images.
        layout: channels and dtype of the images; None for those of the options' mode.
    """

    def __init__(
        self,
        store: Store,
        transform: Transform,
        options: DecodeOptions | None = None,
        layout: PixelLayout | None = None,
    ) -> None:
        self.store = store
        self.transform = transform
        self.options = options or DecodeOptions()
        self.layout = layout or MODES[self.options.mode]
        self._begin()

    def cached(self, cache: CacheStore) -> RowPipeline[Any]:
        """The same rows, from the smaller copies of the same files in a cache; UsageError if it
        lacks some of the images, or they are not files.
        """
        other: RowPipeline[Any] = copy.copy(self)
        files = self.originals()
        cache.check_exif(self.options.exif)
        check_cache_mode(cache, self.layout)
        other.store = CachedFiles(files, cache)
        other.options = replace(self.options, exif=False)  # copies stand as they should
        other._begin()
        return other

    def originals(self) -> FileStore:
        """Files of the images, possibly at URLs, of which a cache may hold copies; UsageError if
        the images are in an archive, a cache or elsewhere.
        """
        store: Any = self.store
        inner = _unselected(store)
        if isinstance(inner, FileStore):
            return inner if inner is store else inner.select(store.numbers)
        if isinstance(inner, ArchiveStore):
            why = f"{inner.archive!r} is an archive: unpack it"
        elif isinstance(inner, CacheStore):
            why = f"{inner.root!r} is a cache; name(sample) returns an image's original name"
        else:
            own = type(self).__name__
            why = f"those of {own} are in {inner!r}: remove cache=, or use feedline.build_cache"
        raise UsageError(f"image files are needed here, but {why}")

    @property
    def has_originals(self) -> bool:
        """True if the images are files, of which a cache may hold copies."""
        return isinstance(_unselected(self.store), FileStore | CachedFiles)

    @property
    def targets(self) -> np.ndarray[Any, Any]:
        """Label of every sample, (n, ...), of the labels' dtype; a new array each time."""
        return np.array(self.store.labels, self.store.label_field.dtype)

    def _begin(self) -> None:
        """Create what is not pickled."""
        self._threads = ThreadDecoder(self.options)
        self._warns_of_clipping = True

    def __len__(self) -> int:
        return len(self.store)

    def open(self, worker: int, workers: int) -> None:
        """Start a worker with its id and the number of workers."""
        self._warns_of_clipping = worker == 0

    def close(self) -> None:
        """Release resources after the last row in this process."""
        self.store.close()

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row at this image size, in pixels, which must be given; UsageError if the
        store has no images that are large enough.
        """
        assert image_size is not None, "stored images have no common size"
        self.level_at(image_size)
        return self.layout.field(image_size, image_size), self.store.label_field

    def level_at(self, image_size: int) -> str:
        """Resolution of the copies for rows of this size, as text, "" for the originals; UsageError
        if the store has none that are large enough.
        """
        return self.store.describe_resolution(self.wanted_side(image_size))

    def wanted_side(self, image_size: int) -> int:
        """Shorter side in pixels of an image that is large enough for rows of this size."""
        return wanted_side(self.transform, image_size)

    @property
    def copies_from(self) -> str:
        """Location of the copies that rows are made of, as text; "" for the originals."""
        cache = cache_within(self.store)
        return "" if cache is None else cache.location.describe()

    def prepare(self, samples: Sequence[int], image_size: int | None) -> None:
        """Prepare for rows that are about to be loaded: fetch remote images together."""
        assert image_size is not None, "stored images have no common size"
        self.store.prepare(samples, self.wanted_side(image_size))

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

    def load_rows(
        self,
        items: Items,
        rows: tuple[np.ndarray[Any, Any], ...],
        begin_row: Callable[[int], None],
        end_row: Callable[[int], None] | None,
    ) -> Iterable[int]:
        """Fill rows of raw pixels together, each as `load` does: arrays of n rows, C-contiguous.

        `begin_row` and `end_row` are called with a row's number before and after it is made.
        Returns the rows that were not made: damaged ones, and all if they are no raw pixels.
        """
        every = range(len(items.samples))
        is_plain = type(self).load is RowPipeline.load and not hasattr(self.transform, "retouch")
        if not is_plain or self.layout != RGB or items.image_size is None:
            return every
        if not all_within(items.samples, len(self)):
            return every
        copies = self.store.raw_copies(items.samples, self.wanted_side(items.image_size))
        if copies is None:
            return every
        rows[1][...] = copies.labels
        return fill_rows(rows[0], copies, self.transform, items, begin_row, end_row)

    def _part(self, item: Item) -> tuple[Pixels, Placement]:
        """Visible part of the image, valid until the next one, and its placement."""
        check_index(item.sample, len(self))
        try:
            wanted = wanted_side(self.transform, item.required_image_size)
            with storage_read:
                image = self.store.read(item.sample, wanted)
            if stage_timer.timed:
                stage_timer.end_stage("read")
            if not isinstance(image, np.ndarray):
                try:
                    return self._decoded(image, item)
                except ImageError:
                    with storage_read:
                        other = self.store.reload(item.sample, image)
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
        reduction = 1
        if self.options.scaled and decoder.reducible:
            reduction = placement.shrink(height, width, item.required_image_size)
            reduced = -(-height // reduction), -(-width // reduction)
            placement = placement.map_to_copy(*reduced, original=(height, width))
        part = decoder.read(reduction, placement.part)
        if decoder.is_clipped and self._warns_of_clipping:
            self._warn_of_clipping(item.sample)
        if stage_timer.timed:
            stage_timer.end_stage("decode")
            stage_timer.note_decoded(height, width)
        return part, placement

    def _warn_of_clipping(self, sample: int) -> None:
        self._warns_of_clipping = False
        warnings.warn(
            f"{self.name(sample)} has 16-bit grey, which is clipped to 8 bits as by torchvision's "
            'loader: values above 255 become white. feedline.ImageFolder(..., mode="I;16") keeps '
            "them. Other such files are not named",
            stacklevel=2,
        )

    def _placement(self, height: int, width: int, item: Item) -> Placement:
        """Placement in an image of (height, width) pixels that was read; ImageError if it is not a
        copy of an original of the indexed size.
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
        return self.transform.place(*original, item).map_to_copy(height, width, original=original)

    def _rescued(self, data: bytes) -> Pixels | None:
        """Pixels of an image that the decoder rejected, for another reader."""
        return None

    def name(self, sample: int) -> str:
        """Name of a sample in messages; an IndexError if there is no such sample."""
        check_index(sample, len(self))
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
        form = self.store.describe_copies()
        mode = "" if self.layout == RGB else f", {self.layout}"
        return without_addresses(
            f"{self.transform!r}, decode={self.options.decode!r}, exif={self.options.exif}{mode}"
            + (form and f", {form}")
        )

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_threads"]
        return state | {"added_codecs": added_codecs()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        register_codecs(state.pop("added_codecs"))
        self.__dict__.update(state)
        self._begin()


class ImageSource(RowPipeline[Store]):
    """Base of the image sources; arguments as in `RowPipeline`.

    The transform may also be a function of an image, such as a torchvision pipeline. Then
    `feedline.DataLoader` compiles it, or otherwise requests samples, like any DataLoader.
    """

    @property
    def writes_rows(self) -> bool:
        """True if the transform is a crop, so that `fields` and `load` may be used."""
        return is_crop(self.transform)

    def fields(self, image_size: int | None) -> tuple[Field, ...]:
        """Arrays of a row, as in `RowPipeline`; UsageError also if the transform is not a crop."""
        if not self.writes_rows:
            raise UsageError(
                f"{type(self).__name__} cannot make rows with {type(self.transform)!r}; "
                "feedline.DataLoader compiles such a transform when it is built. Build a new "
                "loader if the transform has changed"
            )
        return super().fields(image_size)

    def __getitem__(self, sample: int) -> tuple[Any, Any]:
        """Output of the transform for a Pillow image, RGB or in the source's mode; and the label.

        The image is decoded completely; from a cache it is the largest copy.

        Returns:
            the label as an int if labels are whole numbers; otherwise as a numpy array.

        Raises:
            ImageError: the image cannot be read or decoded; names it.
            IndexError: there is no such sample.
            TypeError: the transform is a feedline crop, which is placed per batch.
            Exception: any error of the transform.
        """
        if self.writes_rows:
            raise TypeError(
                f"{type(self).__name__} with {self.transform!r} has no single samples: its rows "
                "are made for batches of feedline.DataLoader. Pass it, or a torch Subset of it, to "
                "feedline.DataLoader; or use a torchvision transform"
            )
        number, count = index(sample), len(self)
        if not -count <= number < count:
            raise IndexError(f"sample index {number} is out of range for {count} samples")
        number %= count
        store: Any = self.store
        side = store.manifest.levels[-1].side if isinstance(store, CacheStore) else 1
        whole = copy.copy(self)
        whole.transform = _Whole(side)
        pixels, _ = whole._part(Item(number, side, 0, 1.0))
        pixels = np.array(pixels, order="C")  # the next image overwrites them
        try:
            image = Image.fromarray(pixels[..., 0] if self.layout.channels == 1 else pixels)
        except TypeError:
            raise UsageError(
                f"{self.transform!r} needs a Pillow image, which cannot have {self.layout}; use "
                "TrainCrop(...) or EvalCrop(...)",
                argument="transform",
            ) from None
        transform: Any = self.transform
        try:
            return transform(image), sample_label(store.label(number))
        except Exception as error:
            mode = "" if self.layout == RGB else f', an image of mode "{image.mode}"'
            note(error, f"Raised for {self.name(number)}{mode}.")
            raise

    def with_transform(self, transform: ImageTransform) -> Self:
        """The same images with another transform, e.g. for evaluation; opened files are shared."""
        other = copy.copy(self)
        other.transform = check_transform(transform)
        return other


class _Whole(NamedTuple):
    """Transform that shows the whole image unchanged, from copies with a given side."""

    side: int

    def place(self, height: int, width: int, item: Item) -> Window:
        return Window(height, width, 0, 0)

    def wanted_side(self, size: int) -> int:
        return self.side


def sample_label(label: Any) -> Any:
    """Label of a sample: an int for a whole number, otherwise an array or number.

    torch's default collate makes the labels of a batch of rows from it.
    """
    given = np.asarray(label)
    if given.shape == () and given.dtype.kind in "iu":
        return int(given)
    return given.copy() if given.shape else given[()]


class ImageSubset(ImageSource[SelectedStore]):
    """Selected images of a source, by their sample indices in order, int64 (n)."""

    def __init__(self, whole: ImageSource[Any], numbers: Numbers) -> None:
        self.whole = whole
        super().__init__(
            SelectedStore(whole.store, numbers), whole.transform, whole.options, whole.layout
        )

    def open(self, worker: int, workers: int) -> None:
        """Start a worker, whose `worker_init_fn` may have set another transform."""
        self.transform = self.whole.transform
        super().open(worker, workers)

    def __repr__(self) -> str:
        return f"{len(self)} images of {self.whole!r}"
