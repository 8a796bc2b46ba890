"""Resize of a part of an image into a row, in one pass, and table lookup of its values.

Rows of raw pixels, of a cache or an array, are made together: placements of all, then one call that
checks and resizes. Each has the same bytes as with `fill`; a row that cannot be made so is returned
to the caller, which makes it with `fill` and so raises the exact error. Pixels with a wrong
checksum are never used.

Guarantees: writes the row (height, width, 3) in place, also in shared memory, and nothing else; no
warning for read-only or oddly strided images. Pixels:
- bilinear, bicubic: the bytes of torch's antialiased uint8 resize (Pillow's algorithm with 16-bit
  weights); on average within 0.2 grey levels of torchvision's pipeline on PIL images;
- box, hamming, lanczos: within 0.02 grey levels of Pillow;
- nearest: the pixels of torch and Pillow;
- with another `ResizeMode` than "bytes": those of Pillow's resize, or of torchvision's version 1.

Relies on: `_resample`, compiled, which makes those bytes in about half of torch's time, at any
ratio and with any number of channels, so a worker of image rows never imports torch. If it was not
compiled, torch itself resizes (its `out=` form saves the copy that `interpolate` needs), and is
imported with this module; filters that torch lacks are then numpy's, with the same bytes. So are
resizes to more than 131,072 pixels. `_lut`, compiled, takes a fraction of numpy's time. Pillow's
order of passes, as since version 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import PIL
from numpy.typing import NDArray

from feedline.images.crops import Box, Filter, Placement, TrainCrop, Transform, Window
from feedline.order.batch_spec import Items
from feedline.sources.files import storage_read
from feedline.sources.store import Pixels, RawCopies
from feedline.timing.stage_timer import stage_timer

try:
    from feedline.images import _resample as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

try:
    from feedline.images import _lut as compiled_lut
except ImportError:
    compiled_lut = None  # type: ignore[assignment]

Floats: TypeAlias = NDArray[np.float64]

FILTERS: tuple[Filter, ...] = get_args(Filter)[:5]
"""Filters that weigh pixels, in the order of `_resample.c`."""


def _bicubic(x: Floats) -> Floats:
    """Keys' cubic convolution with a = -0.5."""
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def _hamming(x: Floats) -> Floats:
    x = np.abs(x)
    base, share = float(np.float32(0.54)), float(np.float32(0.46))  # floats in Pillow
    return np.where(x < 1.0, np.sinc(x) * (base + share * np.cos(np.pi * x)), 0.0)


KERNELS: dict[Filter, tuple[float, Callable[[Floats], Floats]]] = {
    "bilinear": (1.0, lambda x: np.maximum(1.0 - np.abs(x), 0.0)),
    "bicubic": (2.0, _bicubic),
    "box": (0.5, lambda x: ((x > -0.5) & (x <= 0.5)).astype(np.float64)),
    "hamming": (1.0, _hamming),
    "lanczos": (3.0, lambda x: np.where((x >= -3) & (x < 3), np.sinc(x) * np.sinc(x / 3), 0.0)),
}
"""Support of each filter, its reach to both sides in pixels of the smaller of the two images; and
the weight of a source pixel at a distance, not normalised."""


def nearest_pixels(
    filter: Filter, source: int, first: float, extent: float, made: int
) -> NDArray[np.int64]:
    """Source pixel of each of `made` output pixels, int64, for "nearest" or "nearest-exact".

    Of `source` pixels the part of `extent` from `first` is resized.
    """
    scale = extent / made
    if filter == "nearest":
        # torch's arithmetic is in float32.
        places = np.floor(np.arange(made, dtype=np.float32) * np.float32(scale)) + first
    else:
        # Pillow adds step by step, so its roundings are those of a running sum.
        steps = np.full(made, scale)
        steps[0] = first + 0.5 * scale
        places = np.cumsum(steps)
    within: NDArray[np.int64] = np.clip(places.astype(np.int64), 0, source - 1)
    return within


if compiled is None:
    import torch  # noqa: F401  # for every row: before the first one, because it takes 1 s

_WHOLE_LIMIT = 64
"""Largest resized whole of an elongated image, in multiples of the row's pixels."""

ResizeMode: TypeAlias = Literal["pillow", "bytes", "floats"]
"""`pillow`: as Pillow, and so torchvision and timm, resize PIL images, by weights of 22 bits.
`bytes`: as torch, and so version 2 of torchvision's transforms, resizes uint8 tensors, by weights
of 16 bits or fewer. `floats`: as version 1 resizes them, in floats that are rounded once."""

_TORCH_FILTERS = ("bilinear", "bicubic")
_PILLOW_CHOOSES = int(PIL.__version__.partition(".")[0]) >= 13

Edges = tuple[float, float, float, float]
"""Top, left, height and width of the resized area."""


def fill(row: Pixels, image: Pixels, placement: Placement, mode: ResizeMode = "bytes") -> None:
    """Resize a part of an image into a row.

    Args:
        row: (height, width, channels), C-contiguous, overwritten. Other dtypes than uint8 are
            resized in float32, by the definition of the filter.
        image: the same dtype and channels, any strides, read only: the placement's `part` of an
            image, so the whole for a window.
        placement: geometry and filter.
        mode: arithmetic of uint8 pixels.
    """
    rows, columns, channels = row.shape
    from_height, from_width = image.shape[:2]
    filter, flip, edges = placement.filter, placement.flip, None
    if isinstance(placement, Box):
        height, width, top, left, edges = rows, columns, 0, 0, placement.edges
    else:
        height, width, top, left = placement[:4]
    area = edges or (0.0, 0.0, from_height, from_width)
    if filter not in FILTERS:
        _pick(image, row, Window(height, width, top, left, flip, filter), area)
        return
    is_pillow, down_first = mode == "pillow", False
    if is_pillow and _PILLOW_CHOOSES:
        # The bytes between two passes are rounded, so their order matters.
        less_height, less_width = from_height - height, from_width - width
        down_first = less_height > max(0, 2 * less_width)
    is_bounded = height * width <= _WHOLE_LIMIT * rows * columns
    if edges is None and (from_height, from_width) == (height, width):
        np.copyto(row, image[top : top + rows, left : left + columns])
    elif row.itemsize > 1:
        _resize_floats(image, area, Window(height, width, top, left, filter=filter), row)
    elif mode == "floats" and edges is None and filter in _TORCH_FILTERS and is_bounded:
        resized = _resized_in_floats(image, height, width, filter)
        np.copyto(row, resized[top : top + rows, left : left + columns])
    elif compiled is not None and _resample(
        *(image, row, height, width, top, left, flip, down_first + 2 * is_pillow),
        *(FILTERS.index(filter), *(() if edges is None else (edges,))),
    ):
        return
    elif is_bounded:
        # The filter looks beyond the window's edge, so the whole is resized first.
        resized = np.empty((height, width, channels), np.uint8)
        _resize(image, area, resized, filter, down_first, is_pillow)
        np.copyto(row, resized[top : top + rows, left : left + columns])
    else:  # a 1 x 3000 image would be resized to 256 x 768,000 pixels
        _resize_floats(image, area, Window(height, width, top, left, filter=filter), row)
    if flip:
        np.copyto(row, row[:, ::-1].copy())


def _resample(image: Pixels, *arguments: Any) -> bool:
    """Resize any strides, or return False, as `_resample.resample`."""
    return compiled.resample(image, *arguments) or (
        not image.flags.c_contiguous and compiled.resample(np.ascontiguousarray(image), *arguments)
    )


def _pick(image: Pixels, row: Pixels, window: Window, edges: Edges) -> None:
    """Copy the nearest pixels of an area with fractional edges."""
    height, width, top, left, flip, filter = window
    rows, columns = row.shape[:2]
    down = nearest_pixels(filter, image.shape[0], edges[0], edges[2], height)[top : top + rows]
    across = nearest_pixels(filter, image.shape[1], edges[1], edges[3], width)
    across = across[left : left + columns]
    np.take(image[down], across[::-1] if flip else across, 1, out=row, mode="clip")


def _resize(
    image: Pixels, area: Edges, target: Pixels, filter: Filter, down_first: bool, is_pillow: bool
) -> None:
    """Resize an area with fractional edges to the bytes of the compiled resize, without it."""
    is_whole = area == (0.0, 0.0, *image.shape[:2])
    if compiled is None and is_whole and not is_pillow and filter in _TORCH_FILTERS:
        _resize_by_torch(image, target, filter)
        return
    pixels = image.astype(np.int32)
    for axis in (0, 1) if down_first else (1, 0):
        taps, shares, precision = _whole_weights(
            filter, image.shape[axis], area[axis], area[axis + 2], target.shape[axis], is_pillow
        )
        shape = (-1, 1, 1) if axis == 0 else (-1, 1)
        mixed = np.full_like(np.take(pixels, taps[:, 0], axis), 1 << precision - 1)
        for k in range(taps.shape[1]):
            mixed += np.take(pixels, taps[:, k], axis) * shares[:, k].reshape(shape)
        pixels = np.clip(mixed >> precision, 0, 255)
    np.copyto(target, pixels.astype(np.uint8))


def _whole_weights(
    filter: Filter, source: int, first: float, extent: float, resized: int, pillow: bool
) -> tuple[NDArray[Any], NDArray[np.int32], int]:
    """Source pixels that `_resample.c` weighs, shape (resized, taps), their weights as whole
    numbers, and the number of fractional bits of these.
    """
    scale = extent / resized
    support, weigh = KERNELS[filter]
    reach, shrink = support * max(scale, 1.0), min(1.0, 1.0 / scale)
    centres = first + scale * (np.arange(resized) + 0.5)
    starts = np.clip((centres - reach + 0.5).astype(int), 0, source - 1)
    stops = np.minimum((centres + reach + 0.5).astype(int), source)
    taps = starts[:, None] + np.arange((stops - starts).max())
    shares = weigh((taps - centres[:, None] + 0.5) * shrink)
    shares[taps >= stops[:, None]] = 0.0
    total = np.cumsum(shares, 1)[:, -1:]  # one by one, as C adds them up
    shares /= np.where(total == 0.0, 1.0, total)
    precision = 22 if pillow else 0
    while precision < 22 and int(0.5 + shares.max() * (1 << precision + 1)) < 1 << 15:
        precision += 1
    exact = shares * (1 << precision)
    whole = (exact + np.where(exact < 0.0, -0.5, 0.5)).astype(np.int32)
    return np.minimum(taps, source - 1), whole, precision


def _resize_by_torch(source: Pixels, target: Pixels, filter: Filter) -> None:
    """Resize all of `source` (h, w, channels) to all of `target` (H, W, channels)."""
    if not source.flags.writeable or min(source.strides) < 0:  # torch warns, or refuses
        source = source.copy()
    import torch  # was imported with this module

    # What torch.nn.functional.interpolate calls; the same through torch.ops takes 2 us longer.
    resize: Any = getattr(torch._C._nn, f"_upsample_{filter}2d_aa")
    resize(
        torch.from_numpy(source[None]).permute(0, 3, 1, 2),
        list(target.shape[:2]),
        False,
        None,
        None,
        out=torch.from_numpy(target[None]).permute(0, 3, 1, 2),
    )


def _resize_floats(image: Pixels, edges: Edges, window: Window, row: Pixels) -> None:
    """Make only the window of a resized area, in floats that are rounded once for whole numbers."""
    height, width, top, left, _, filter = window
    down, rows = _shares(filter, image.shape[0], edges[0], edges[2], height, top, row.shape[0])
    across, columns = _shares(filter, image.shape[1], edges[1], edges[3], width, left, row.shape[1])
    part = image[rows, columns].astype(np.float32)
    shape = (len(down), *part.shape[1:])
    values = np.matmul(across, (down @ part.reshape(len(part), -1)).reshape(shape))
    if row.dtype.kind != "f":
        limits = np.iinfo(row.dtype)
        values = np.clip(np.floor(values + 0.5), limits.min, limits.max)
    np.copyto(row, values, casting="unsafe")


def _shares(
    filter: Filter,
    source: int,
    edge: float,
    extent: float,
    resized: int,
    first: int,
    count: int,
) -> tuple[NDArray[np.float32], slice]:
    """Weights (count, n) of a filter for `count` of `resized` pixels from `first`, and their n
    source pixels. Of `source` pixels the area of `extent` from `edge` is resized.
    """
    scale = extent / resized
    support, weigh = KERNELS[filter]
    reach = support * max(scale, 1.0)
    centres = edge + (np.arange(first, first + count) + 0.5) * scale
    low = max(int(centres[0] - reach), 0)
    high = min(int(centres[-1] + reach) + 1, source)
    shares = weigh((np.arange(low, high) + 0.5 - centres[:, None]) / max(scale, 1.0))
    shares /= shares.sum(axis=1, keepdims=True)
    return shares.astype(np.float32), slice(low, high)


def _resized_in_floats(image: Pixels, height: int, width: int, filter: Filter) -> Pixels:
    if image.shape[:2] == (height, width):
        return image
    import torch  # was imported with the compiled pipelines, which alone need this

    resized = torch.nn.functional.interpolate(
        # The image may be read-only, of which torch would warn: convert before.
        torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None],
        size=(height, width),
        mode=filter,
        antialias=True,
    )
    made: Pixels = resized[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).numpy()
    return made


def apply_lut(image: Pixels, tables: NDArray[Any], target: NDArray[Any]) -> None:
    """Write tables[c, image[y, x, c]] to target[c, y, x].

    Args:
        image: uint8 (height, width, 3), C-contiguous.
        tables: (3, 256), C-contiguous.
        target: (3, height, width) of the tables' dtype, C-contiguous, not overlapping the image.
    """
    if compiled_lut is not None:
        compiled_lut.apply_lut(image, tables, target)
        return
    for channel, table in enumerate(tables):
        # A uint8 is never out of the table's bounds, and "raise" would make numpy buffer.
        np.take(table, image[..., channel], out=target[channel], mode="clip")


Placements: TypeAlias = NDArray[np.float64]
"""Placements on copies (n, 16): height and width of the copy; top, left, height and width of the
part, and of the area in it; height and width of the resized area, top and left of the row in it;
flip; filter, as in `FILTERS`. All zero if there is none."""

_COLUMNS = 16


def place_rows(transform: Transform, items: Items, sizes: NDArray[np.int64]) -> Placements:
    """Placements of the rows of `items`; `sizes` are the heights and widths of the originals and of
    the copies, int64 (n, 4).
    """
    assert items.image_size is not None
    if type(transform) is TrainCrop and transform.filter in FILTERS and compiled:
        placements = np.empty((len(sizes), _COLUMNS))
        crop = (
            *(items.strength, *transform.scale, *transform.log_ratio, *transform.ratio),
            transform.flip,
        )
        filter = FILTERS.index(transform.filter)
        compiled.place_crops(items.seeds, sizes, placements, crop, items.image_size, filter)
        return placements
    placements = np.zeros((len(sizes), _COLUMNS))
    for k, item in enumerate(items.each()):
        height, width, *copy = sizes[k].tolist()
        try:
            placement = transform.place(height, width, item).map_to_copy(
                *copy, original=(height, width)
            )
        except Exception:  # the caller makes this row, which raises it
            continue
        if placement.filter in FILTERS:
            placements[k] = _as_numbers(placement, copy[0], copy[1], items.image_size)
    return placements


def _as_numbers(placement: Placement, height: int, width: int, size: int) -> tuple[float, ...]:
    filter = FILTERS.index(placement.filter)
    if isinstance(placement, Box):
        _, _, rows, columns = part = placement[:4]
        area, to = placement.edges or (0.0, 0.0, rows, columns), (size, size, 0, 0)
    else:
        part, area, to = (0, 0, height, width), (0.0, 0.0, height, width), placement[:4]
    return height, width, *part, *area, *to, placement.flip, filter


def fill_rows(
    rows: Pixels,
    copies: RawCopies,
    transform: Transform,
    items: Items,
    begin_row: Callable[[int], None],
    end_row: Callable[[int], None] | None,
) -> Iterable[int]:
    """Fill rows, uint8 (n, size, size, 3), C-contiguous, from raw copies, uint8 with 3 channels.

    Otherwise like `RowPipeline.load_rows`.
    """
    if compiled is None:
        return range(len(rows))
    after_check: Callable[[int], Any] | None = None
    if stage_timer.timed:
        after_check = lambda _: stage_timer.end_stage("read")  # noqa: E731
        end_row = _end_resize(end_row)
    placements = place_rows(transform, items, copies.sizes)
    with storage_read:  # checksums read the mapped memory
        return compiled.resample_rows(
            *(copies.pixels, copies.header_bytes, placements, copies.checksums, rows),
            *(begin_row, after_check, end_row),
        )


def _end_resize(end_row: Callable[[int], None] | None) -> Callable[[int], None]:
    def end(row: int) -> None:
        stage_timer.end_stage("resize")
        if end_row is not None:
            end_row(row)

    return end
