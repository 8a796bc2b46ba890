"""Geometry of crops: which part of an image becomes a row, and at which size.

Guarantees: pure geometry on the original image's height and width, so that the same crop can be
taken from a smaller copy of it; the same seed gives the same crop everywhere.

Relies on: torchvision's RandomResizedCrop.get_params, Resize and CenterCrop for the algorithms,
their distributions and their rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, get_args

from feedline.errors import UsageError
from feedline.order.batch_spec import Item
from feedline.order.seeds import RandomStream
from feedline.sources.store import Pixels

Filter = Literal["bilinear", "bicubic", "box", "hamming", "lanczos", "nearest", "nearest-exact"]
"""`nearest-exact` is Pillow's nearest: the source pixel under the middle of the output pixel.
`nearest` is torch's: the one under its upper left corner."""

Shape: TypeAlias = tuple[int, int]
"""Height and width, in pixels."""


def scale_shape(shape: Shape, size: int, of: int) -> Shape:
    """Scale a height and width in proportion, from `of` pixels to `size`."""
    height, width = (max(1, round(side * size / of)) for side in shape)
    return height, width


def format_shape(shape: Shape) -> str:
    """Side of a square, or height x width, in pixels, as text."""
    height, width = shape
    return f"{height} px" if height == width else f"{height} x {width} px"


Part: TypeAlias = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image, in pixels."""


def cut(image: Pixels, part: Part | None) -> Pixels:
    """View of a part of an image (height, width, 3), checked to lie in it; of all for None."""
    if part is None:
        return image
    check_part(part, *image.shape[:2])
    top, left, height, width = part
    return image[top : top + height, left : left + width]


def check_part(part: Part | None, rows: int, columns: int) -> None:
    """Raise a ValueError if a part is empty or does not lie in an image of this size."""
    if part is not None:
        top, left, height, width = part
        if not (0 <= top < top + height <= rows and 0 <= left < left + width <= columns):
            raise ValueError(f"the part {part} must lie in the image of {rows} x {columns} pixels")


class Box(NamedTuple):
    """A part of an image, in pixels, to be resized to a row and optionally mirrored.

    `edges`: fractional top, left, height and width of the area to resize, relative to the part. Set
    if a crop of the original is mapped to a smaller copy, because its edges may then lie inside
    pixels of the copy. None: resize the whole part.
    """

    top: int
    left: int
    height: int
    width: int
    flip: bool
    edges: tuple[float, float, float, float] | None = None
    filter: Filter = "bilinear"

    def shrink(self, height: int, width: int, size: int) -> int:
        """Largest factor, 1, 2, 4 or 8, by which this part may be reduced and still has `size`."""
        return _shrink(min(self.height, self.width), size)

    @property
    def part(self) -> Part | None:
        """Required part of the image."""
        return self[:4]

    def map_to_copy(self, height: int, width: int, *, original: tuple[int, int]) -> Box:
        """Map this part of an image of `original` (height, width) to a copy of (height, width)."""
        if (height, width) == original:
            return self
        top, left, rows, columns, flip, edges, filter = self
        down, across, tall, wide = edges or (0.0, 0.0, rows, columns)
        top, bottom, down, tall = _interval(top + down, tall, height, original[0])
        left, right, across, wide = _interval(left + across, wide, width, original[1])
        rows, columns = bottom - top, right - left
        whole = down == 0.0 == across and tall == rows and wide == columns
        exact = None if whole else (down, across, tall, wide)
        return Box(top, left, rows, columns, flip, exact, filter)


class Window(NamedTuple):
    """A row's area at (top, left) of an image that is resized completely to (height, width)."""

    height: int
    width: int
    top: int
    left: int
    flip: bool = False
    filter: Filter = "bilinear"

    def shrink(self, height: int, width: int, size: int) -> int:
        """Largest factor, 1, 2, 4 or 8, by which the image may be reduced and not be enlarged."""
        return min(_shrink(height, self.height), _shrink(width, self.width))

    @property
    def part(self) -> Part | None:
        """None: all of the image is required."""
        return None

    def map_to_copy(self, height: int, width: int, *, original: tuple[int, int]) -> Window:
        """The same on any copy: it is resized to the same size."""
        return self


Placement: TypeAlias = Box | Window


def _interval(first: float, extent: float, length: int, of: int) -> tuple[int, int, float, float]:
    """Map an interval of `of` pixels to a copy of `length`: first pixel and end pixel; and the
    interval's first edge, relative to the first pixel, and its extent.
    """
    # Comparisons, where min and max would take three times as long: this is done for every row.
    low, most = first * length / of, length - 1e-3
    if low > most:
        low = most
    high = (first + extent) * length / of
    if high < low + 1e-3:
        high = low + 1e-3
    if high > length:
        high = float(length)
    start, stop = math.floor(low), math.ceil(high)
    return start, stop, low - start, high - low


def _shrink(pixels: int, wanted: int) -> int:
    return next((by for by in (8, 4, 2) if pixels >= wanted * by), 1)


_TRIES = 10


class Transform(Protocol):
    """Protocol of an image source's transform."""

    def place(self, height: int, width: int, item: Item) -> Placement:
        """Return the part of an image of (height, width) pixels that becomes the row.

        A transform may also change the row's pixels, in a method `retouch(pixels, item)`: uint8
        (size, size, 3), changed in place, with random draws that depend on the item's seed alone.
        """
        ...


def wanted_side(transform: Transform, size: int) -> int:
    """Shorter side of an image that is large enough for rows of `size` px.

    A transform may define it with a method `wanted_side(size)`: the side at which it does not
    enlarge an image that it shows completely. Otherwise it is `size`.
    """
    own = getattr(transform, "wanted_side", None)
    return size if own is None else int(own(size))


def without_addresses(text: str) -> str:
    """Remove the memory addresses from a repr, so that it is equal in every process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


@dataclass(frozen=True)
class TrainCrop:
    """Random crop, resized and flipped: torchvision's RandomResizedCrop and RandomHorizontalFlip.

    An area and an aspect ratio are drawn up to ten times until the crop fits into the image;
    otherwise the largest central crop within the ratios is used. All draws come from the item's
    seed.

    An item's strength s, 0 to 1, weakens the crop: the smallest share of the area becomes 1 - s *
    (1 - scale[0]), but at most scale[1]. Progressive resizing uses weak augmentation at small sizes
    (EfficientNetV2, arXiv:2104.00298, section 4).

    Args:
        scale: range of the crop's share of the image area.
        ratio: range of the crop's width / height; drawn uniformly in its logarithm.
        flip: probability of a horizontal flip.
        filter: resize filter: "bilinear", "bicubic", "lanczos", "box", "hamming", "nearest-exact"
            (Pillow's choice of pixels) or "nearest" (torch's); from several, one is drawn.

    Raises:
        UsageError: an argument is out of range.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    filter: Filter | tuple[Filter, ...] = "bilinear"
    uses_strength: ClassVar[bool] = True
    log_ratio: tuple[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        scale, ratio = _pair("scale", self.scale), _pair("ratio", self.ratio)
        limits = "(low, high) with 0 < low <= high"
        check_value("scale", scale, 0 < scale[0] <= scale[1] <= 1, f"{limits} <= 1")
        check_value("ratio", ratio, 0 < ratio[0] <= ratio[1] < math.inf, limits)
        is_probability = isinstance(self.flip, (int, float)) and 0 <= self.flip <= 1
        check_value("flip", self.flip, is_probability, "a probability from 0 to 1")
        several = isinstance(self.filter, (tuple, list)) and len(self.filter) > 0
        for each in self.filter if several else (self.filter,):
            _check_filter(each)
        if several:
            object.__setattr__(self, "filter", tuple(self.filter))
        # Lists would make the transform unhashable.
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "log_ratio", (math.log(ratio[0]), math.log(ratio[1])))

    def place(self, height: int, width: int, item: Item) -> Box:
        """Draw the crop for an item, in an image of (height, width) pixels."""
        return self.box(height, width, RandomStream(item.seed), item.strength)

    def box(self, height: int, width: int, stream: RandomStream, strength: float = 1.0) -> Box:
        """Draw a crop within an image of (height, width) pixels.

        The number of draws from the stream varies; the strength is 0 to 1, as above. For raw caches
        and arrays, `draw` in `c/_rows.c` does the same.
        """
        smallest, largest = self.scale
        smallest = min(1.0 - strength * (1.0 - smallest), largest)
        low, high = self.log_ratio
        area = height * width
        for _ in range(_TRIES):
            share, shape = stream.pair()
            target = area * (smallest + (largest - smallest) * share)
            ratio = math.exp(low + (high - low) * shape)
            w = round(math.sqrt(target * ratio))
            h = round(math.sqrt(target / ratio))
            if 0 < w <= width and 0 < h <= height:
                down, across, mirror = stream.triple()
                top, left = int(down * (height - h + 1)), int(across * (width - w + 1))
                return Box(top, left, h, w, mirror < self.flip, None, self._filter(stream))
        h, w = height, width
        if width < height * self.ratio[0]:
            h = max(1, min(height, round(width / self.ratio[0])))
        elif width > height * self.ratio[1]:
            w = max(1, min(width, round(height * self.ratio[1])))
        flip = stream.uniform() < self.flip
        return Box((height - h) // 2, (width - w) // 2, h, w, flip, None, self._filter(stream))

    def _filter(self, stream: RandomStream) -> Filter:
        if isinstance(self.filter, str):
            return self.filter
        return self.filter[int(stream.uniform() * len(self.filter))]


@dataclass(frozen=True)
class EvalCrop:
    """Centre crop: torchvision's Resize(round(size / fraction)), CenterCrop(size).

    Args:
        fraction: kept part of the shorter side, above 0 and at most 1; 0.875 is the usual 224 of
            256.
        filter: resize filter, one of those of `TrainCrop`.

    Raises:
        UsageError: an argument is out of range.
    """

    fraction: float = 0.875
    filter: Filter = "bilinear"
    uses_strength: ClassVar[bool] = False

    def __post_init__(self) -> None:
        is_fraction = isinstance(self.fraction, (int, float)) and 0 < self.fraction <= 1
        check_value("fraction", self.fraction, is_fraction, "above 0 and at most 1")
        _check_filter(self.filter)

    def place(self, height: int, width: int, item: Item) -> Window:
        """Place the central square in an image of (height, width) pixels; nothing is random.

        The resized image is never smaller than the square, so there is no padding.
        """
        size = item.required_image_size
        whole = resize_shape(height, width, self.wanted_side(size))
        return Window(*whole, *centre_corner(*whole, size, size), False, self.filter)

    def wanted_side(self, size: int) -> int:
        """Shorter side, in pixels, to which images are resized for rows of `size` px."""
        return round(size / self.fraction)


@dataclass(frozen=True)
class WindowCrop:
    """Resize, then CenterCrop, RandomCrop or nothing, and optionally a flip before or after these.

    At another image size than the crop's longer side everything is scaled alike: for a square,
    Resize(round(resize * size / side)) and a crop of that size.
    """

    resize: int | Shape  # shorter side of the resized image, or its height and width
    crop: Shape  # no side is larger than the resized image's
    random: bool = False  # placed uniformly at random; otherwise in the centre
    flip: float = 0.0  # probability of mirroring left and right
    flip_first: bool = False  # the image is mirrored before the crop, not after it
    filter: Filter = "bilinear"
    uses_strength: ClassVar[bool] = False

    @property
    def draws(self) -> bool:
        """True if the result depends on an item's seed."""
        return self.random or bool(self.flip)

    def place(self, height: int, width: int, item: Item) -> Placement:
        """Place the crop in an image of (height, width) pixels for this item."""
        stream = RandomStream(item.seed)
        flip = bool(self.flip) and stream.uniform() < self.flip

        def draw_corner(down: int, across: int) -> tuple[int, int]:
            top, left = stream.pair()
            return int(top * (down + 1)), int(left * (across + 1))

        return self.place_at(height, width, item.required_image_size, flip, draw_corner)

    def place_at(
        self,
        height: int,
        width: int,
        size: int,
        flip: bool,
        draw_corner: Callable[[int, int], tuple[int, int]],
    ) -> Placement:
        """Place the crop in an image of (height, width) pixels, for a longer side of `size` pixels.

        `draw_corner` draws the top and left of a random crop, up to the largest ones.
        """
        rows, columns = scale_shape(self.crop, size, max(self.crop))
        whole = self.resized_shape(height, width, size)
        if whole == (rows, columns) and not isinstance(self.resize, int):
            return Box(0, 0, height, width, flip, None, self.filter)
        if self.random:
            top, left = draw_corner(whole[0] - rows, whole[1] - columns)
        else:
            top, left = centre_corner(*whole, rows, columns)
        if flip and self.flip_first:
            # What is cut out of the mirrored image lies on the other side of the image itself.
            left = whole[1] - columns - left
        return Window(*whole, top, left, flip, self.filter)

    def resized_shape(self, height: int, width: int, size: int) -> Shape:
        """Height and width of the resized image, for a longer side of the crop of `size` pixels."""
        if isinstance(self.resize, int):
            return resize_shape(height, width, self.wanted_side(size))
        return scale_shape(self.resize, size, max(self.crop))

    def wanted_side(self, size: int) -> int:
        """Shorter side, in pixels, of an image that need not be enlarged for `size` px."""
        side = self.resize if isinstance(self.resize, int) else max(self.resize)
        return round(side * size / max(self.crop))


def resize_shape(height: int, width: int, short: int) -> tuple[int, int]:
    """Height and width of an image after its shorter side is resized to `short` px."""
    # As torchvision rounds: the longer side is cut.
    if width <= height:
        return int(short * height / width), short
    return short, int(short * width / height)


def centre_corner(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Top and left of a central part of (rows, columns) in (height, width) pixels."""
    # As torchvision rounds: the corner goes to the even neighbour.
    return round((height - rows) / 2.0), round((width - columns) / 2.0)


def check_value(argument: str, value: object, is_valid: bool, expected: str) -> None:
    """Raise a UsageError that says what was expected of an argument, unless its value is valid."""
    if not is_valid:
        raise UsageError(f"must be {expected}, got {value!r}", argument=argument)


def _check_filter(filter: object) -> None:
    known = get_args(Filter)
    check_value("filter", filter, filter in known, f"one of {', '.join(known)}")


def _pair(name: str, value: Any) -> tuple[float, float]:
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    is_pair = is_pair and all(isinstance(number, (int, float)) for number in value)
    check_value(name, value, is_pair, "two numbers (low, high)")
    return value[0], value[1]
