"""Which part of an image becomes a row: the random crop of training, the central one of testing.

Guarantees: pure geometry on the original image's height and width, so that the same crop can
be taken from a smaller copy of it; the same seed gives the same crop everywhere.

Relies on: torchvision's RandomResizedCrop.get_params, Resize and CenterCrop for the
algorithms, their distributions and their roundings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from feedline.errors import UsageError
from feedline.plan.row import Item
from feedline.plan.seeds import Stream
from feedline.stores.store import Pixels

__all__ = [
    "Box",
    "EvalCrop",
    "Part",
    "Placement",
    "TrainCrop",
    "Transform",
    "Window",
    "centred",
    "checked_transform",
    "cut",
    "resized",
    "wanted_side",
]

_TRIES = 10

Part: TypeAlias = tuple[int, int, int, int]
"""The top, left, height and width of a part of an image, in pixels."""


def cut(image: Pixels, part: Part | None) -> Pixels:
    """A part of an image (height, width, 3), where it lies; the image itself for None.

    Raises:
        ValueError: the part is empty or does not lie in the image.
    """
    if part is None:
        return image
    top, left, height, width = part
    rows, columns = image.shape[:2]
    if not (0 <= top < top + height <= rows and 0 <= left < left + width <= columns):
        raise ValueError(f"the part {part} must lie in the image of {rows} x {columns} pixels")
    return image[top : top + height, left : left + width]


class Box(NamedTuple):
    """A part of an image, in pixels, to be resized to a square row and perhaps mirrored.

    `edges` are the top, left, height and width of what is resized of it, in the part's own pixels,
    where they lie within pixels: so a part of an image is found on a copy of another size.
    """

    top: int
    left: int
    height: int
    width: int
    flip: bool
    edges: tuple[float, float, float, float] | None = None

    def shrink(self, height: int, width: int, size: int) -> int:
        """By how much, 1, 2, 4 or 8, the (height, width) image may be decoded smaller.

        The most at which this part still has the `size` of the row in both directions.
        """
        return _shrink(min(self.height, self.width), size)

    @property
    def part(self) -> Part | None:
        """What of the image is looked at."""
        return self[:4]

    def on(self, height: int, width: int, *, of: tuple[int, int]) -> Box:
        """Find this part of an image `of` (height, width) on a copy of (height, width)."""
        if (height, width) == of:
            return self
        top, left, rows, columns, flip, edges = self
        down, across, tall, wide = edges or (0.0, 0.0, rows, columns)
        top, bottom, down, tall = _interval(top + down, tall, height, of[0])
        left, right, across, wide = _interval(left + across, wide, width, of[1])
        rows, columns = bottom - top, right - left
        whole = down == 0.0 == across and tall == rows and wide == columns
        return Box(top, left, rows, columns, flip, None if whole else (down, across, tall, wide))


class Window(NamedTuple):
    """A square at (top, left) of an image that is resized as a whole to (height, width)."""

    height: int
    width: int
    top: int
    left: int
    flip: bool = False

    def shrink(self, height: int, width: int, size: int) -> int:
        """By how much, 1, 2, 4 or 8, the (height, width) image may be decoded smaller.

        The most at which the whole need not be enlarged.
        """
        return min(_shrink(height, self.height), _shrink(width, self.width))

    @property
    def part(self) -> Part | None:
        """None: all of the image is looked at."""
        return None

    def on(self, height: int, width: int, *, of: tuple[int, int]) -> Window:
        """The same on any copy: it is resized to the same whole."""
        return self


Placement: TypeAlias = Box | Window


class Transform(Protocol):
    """What an image folder asks of a transform."""

    def place(self, height: int, width: int, item: Item) -> Placement:
        """Say which part of an image of (height, width) pixels becomes the row."""
        ...


def wanted_side(transform: Transform, size: int) -> int:
    """The shorter side at which an image is large enough for rows of `size` px.

    A transform may say so in a method `wanted_side(size)`: the side at which it does not enlarge an
    image of which it shows all that it may show. Else it is `size`.
    """
    own = getattr(transform, "wanted_side", None)
    return size if own is None else int(own(size))


@dataclass(frozen=True)
class TrainCrop:
    """A random part of the image, resized to the row and mirrored half of the time.

    torchvision's RandomResizedCrop and RandomHorizontalFlip: an area and an aspect ratio are
    drawn up to ten times until they fit into the image; else the largest central part within
    the ratios is taken. All draws come from the item's seed.

    Args:
        scale: the smallest and the largest share of the image's area.
        ratio: the smallest and the largest width / height; drawn uniformly in its logarithm.
        flip: the probability of mirroring left and right.

    An item's strength s, 0 to 1, weakens the crop: the smallest share of the area becomes
    1 - s * (1 - scale[0]), but no more than scale[1]. Progressive resizing wants weak
    augmentation at small sizes (EfficientNetV2, arXiv:2104.00298, section 4).
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    uses_strength: ClassVar[bool] = True
    _log_ratio: tuple[float, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        scale, ratio = _pair("scale", self.scale), _pair("ratio", self.ratio)
        if not 0 < scale[0] <= scale[1] <= 1:
            raise UsageError(
                f"scale must be (low, high) with 0 < low <= high <= 1, got {self.scale!r}"
            )
        if not 0 < ratio[0] <= ratio[1] < math.inf:
            raise UsageError(f"ratio must be (low, high) with 0 < low <= high, got {self.ratio!r}")
        if not (isinstance(self.flip, (int, float)) and 0 <= self.flip <= 1):
            raise UsageError(f"flip must be a probability, 0 to 1, got {self.flip!r}")
        # Lists would make the transform unhashable.
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "_log_ratio", (math.log(ratio[0]), math.log(ratio[1])))

    def place(self, height: int, width: int, item: Item) -> Box:
        """Draw the part of an image of (height, width) pixels for this item."""
        return self.box(height, width, Stream(item.seed), item.strength)

    def box(self, height: int, width: int, stream: Stream, strength: float = 1.0) -> Box:
        """Draw a part of an image of (height, width) pixels; it lies inside the image.

        How many numbers are taken from the stream varies; the strength is 0 to 1, as above.
        """
        smallest, largest = self.scale
        smallest = min(1.0 - strength * (1.0 - smallest), largest)
        low, high = self._log_ratio
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
                return Box(top, left, h, w, mirror < self.flip)
        h, w = height, width
        if width < height * self.ratio[0]:
            h = max(1, min(height, round(width / self.ratio[0])))
        elif width > height * self.ratio[1]:
            w = max(1, min(width, round(height * self.ratio[1])))
        return Box((height - h) // 2, (width - w) // 2, h, w, stream.uniform() < self.flip)


@dataclass(frozen=True)
class EvalCrop:
    """The centre of the image: torchvision's Resize(round(size / fraction)), CenterCrop(size).

    Args:
        fraction: which part of the shorter side is kept, above 0 and at most 1; 0.875 is the
            usual 224 of 256.
    """

    fraction: float = 0.875
    uses_strength: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (isinstance(self.fraction, (int, float)) and 0 < self.fraction <= 1):
            raise UsageError(f"fraction must be above 0 and at most 1, got {self.fraction!r}")

    def place(self, height: int, width: int, item: Item) -> Window:
        """Place the central square in an image of (height, width) pixels; nothing is drawn."""
        return self.window(height, width, item.side)

    def window(self, height: int, width: int, size: int) -> Window:
        """Place a central square of `size` px in an image of (height, width) pixels, resized.

        The resized image is never smaller than the square, so nothing is padded.
        """
        whole = resized(height, width, self.wanted_side(size))
        return Window(*whole, *centred(*whole, size))

    def wanted_side(self, size: int) -> int:
        """The shorter side, in pixels, to which images are resized for rows of `size` px."""
        return round(size / self.fraction)


def resized(height: int, width: int, short: int) -> tuple[int, int]:
    """The height and width of an image when its shorter side is resized to `short` px."""
    # As torchvision rounds: the longer side is cut.
    if width <= height:
        return int(short * height / width), short
    return short, int(short * width / height)


def centred(height: int, width: int, size: int) -> tuple[int, int]:
    """The top and left of a central square of `size` px in (height, width) pixels."""
    # As torchvision rounds: the corner goes to the even neighbour.
    return round((height - size) / 2.0), round((width - size) / 2.0)


def checked_transform(transform: object) -> Transform:
    """A user's transform, or `TrainCrop()` for None.

    Raises:
        UsageError: it is no transform.
    """
    if transform is None:
        return TrainCrop()
    if isinstance(transform, type) or not callable(getattr(transform, "place", None)):
        raise UsageError(f"transform must be TrainCrop(...) or EvalCrop(...), got {transform!r}")
    return transform  # type: ignore[return-value]


def _interval(first: float, extent: float, length: int, of: int) -> tuple[int, int, float, float]:
    """An interval of `of` pixels on a copy of `length`: the whole pixels, and where in them it is.

    Returns:
        The first pixel and the one behind the last; the interval's first edge and its extent,
        counted from there.
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


def _pair(name: str, value: object) -> tuple[float, float]:
    if isinstance(value, (tuple, list)) and len(value) == 2:
        low, high = value
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            return low, high
    raise UsageError(f"{name} must be two numbers (low, high), got {value!r}")
