"""Rows of raw pixels, made together: placements of all, then one call that checks and resizes.

Guarantees: each row has the same bytes as with `crops` and `resize.fill`. A row that cannot be made
here is returned to the caller, which makes it with those functions and so raises the exact error.
Pixels with a wrong checksum are never used.

Relies on: `_rows.c`, compiled; without it, all rows are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.images import resize
from feedline.images.crops import Box, Placement, TrainCrop, Transform
from feedline.images.resize import FILTERS
from feedline.order.batch_spec import Items
from feedline.sources.files import storage_read
from feedline.sources.store import Pixels, RawCopies
from feedline.trace import stage_timer

__all__ = ["Placements", "fill_rows", "place_rows"]

Placements: TypeAlias = NDArray[np.float64]
"""Placements on copies (n, 16): height and width of the copy; top, left, height and width of the
part, and of the area in it; height and width of the resized area, top and left of the row in it;
flip; filter, as in `FILTERS`. All zero if there is none."""

_COLUMNS = 16


def place_rows(transform: Transform, items: Items, sizes: NDArray[np.int64]) -> Placements:
    """Placements of several rows.

    Args:
        transform: places the crops.
        items: requests for the rows.
        sizes: height and width of the originals and of the copies, int64 (n, 4).
    """
    assert items.image_size is not None
    if type(transform) is TrainCrop and transform.filter in FILTERS and resize.compiled:
        placements = np.empty((len(sizes), _COLUMNS))
        crop = (
            *(items.strength, *transform.scale, *transform.log_ratio, *transform.ratio),
            transform.flip,
        )
        filter = FILTERS.index(transform.filter)
        resize.compiled.place_crops(items.seeds, sizes, placements, crop, items.image_size, filter)
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
    """Fill rows from raw copies. Return the numbers of those that were not made.

    Args:
        rows: uint8 (n, size, size, 3), C-contiguous, overwritten.
        copies: uint8 images with 3 channels.
        transform, items: as in `place_rows`.
        begin_row, end_row: called with a row's number before and after it is made.
    """
    if resize.compiled is None:
        return range(len(rows))
    after_check: Callable[[int], Any] | None = None
    if stage_timer.timed:
        after_check = lambda _: stage_timer.end_stage("read")  # noqa: E731
        end_row = _end_resize(end_row)
    placements = place_rows(transform, items, copies.sizes)
    with storage_read:  # checksums read the mapped memory
        return resize.compiled.resample_rows(
            *(copies.pixels, copies.header_bytes, placements, copies.checksums, rows),
            *(begin_row, after_check, end_row),
        )


def _end_resize(end_row: Callable[[int], None] | None) -> Callable[[int], None]:
    def end(row: int) -> None:
        stage_timer.end_stage("resize")
        if end_row is not None:
            end_row(row)

    return end
