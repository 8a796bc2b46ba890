"""What a plan of a cache is asked for: checked, and as the sides of levels.

Guarantees: pure; whatever is wrong with the arguments is said before anything is measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from feedline.cache.build_plan import levels_of
from feedline.cache.candidates import candidate_sides, serving
from feedline.errors import UsageError
from feedline.images.crops import Transform, wanted_side
from feedline.plan.schedule import Schedule

__all__ = ["asked_sides", "check_numbers", "wanted_sides"]

_MOST_SIDE = 8192
_MOST_GIVEN = 8
_MOST_IMAGES = 10_000


def wanted_sides(schedule: Schedule, crop: Transform) -> dict[int, int]:
    """For each size of the schedule the shorter side at which images are wanted, in pixels.

    Raises:
        UsageError: the schedule has no sizes, or one that no level can have.
    """
    if not schedule.sizes:
        raise UsageError(
            f"the schedule {schedule} has no image sizes, which say what copies would serve; write "
            'them, e.g. "112x10,160x10,224x10"'
        )
    wanted = {size: wanted_side(crop, size) for size in sorted(set(schedule.sizes))}
    for size, side in wanted.items():
        if side > _MOST_SIDE:
            raise UsageError(
                f"rows of {size} px want copies of {side} px, and levels have at most "
                f"{_MOST_SIDE} px; train with the originals at that size"
            )
    return wanted


def asked_sides(given: Collection[int] | None, wanted: dict[int, int]) -> tuple[int, ...]:
    """The sides of the levels to compare, smallest first: those that were given, or candidates.

    Raises:
        UsageError: those that were given are too many, or not large enough.
    """
    if given is None:
        return candidate_sides(wanted.values())
    sides = tuple(level.side for level in levels_of(tuple(given), quality=95, raw=False))
    if len(sides) > _MOST_GIVEN:
        raise UsageError(f"at most {_MOST_GIVEN} sizes are compared, got {len(sides)}")
    most = max(wanted.values())
    if serving(sides, most) is None:
        raise UsageError(
            f"the sizes {','.join(map(str, sides))} serve no rows of {max(wanted)} px: add one of "
            f"at least {most}"
        )
    return sides


def check_numbers(
    images: int, disk_bytes: float | None, disk_bytes_per_s: float, seconds: float
) -> None:
    """Refuse what is no usable number.

    Raises:
        UsageError: one of them is none.
    """
    if isinstance(images, bool) or not isinstance(images, int) or not 1 <= images <= _MOST_IMAGES:
        raise UsageError(f"images must be a whole number from 1 to {_MOST_IMAGES}, got {images!r}")
    given = {"disk_bytes": disk_bytes, "disk_bytes_per_s": disk_bytes_per_s, "seconds": seconds}
    for name, value in given.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} must be a number above 0, got {value!r}")
