"""Smaller JPEG copies of some images in a temporary folder, to see what they would bring.

Guarantees: nothing is left of them, whatever ends the work, unless this process is killed
outright. Where there is no room for them, or they cannot be written, that is said and nothing is
raised. No image is enlarged: one that is small enough already is copied as it is.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from feedline.bench.pool import Keep, Pool, Tell
from feedline.bench.scratch import temporary_folder
from feedline.bench.survey import Survey
from feedline.errors import ImageError
from feedline.images.decode import Decoder
from feedline.images.folder import ImageFolder
from feedline.stores.read_file import read_file
from feedline.system import available_memory_bytes

__all__ = ["Copies", "copies", "copies_side", "no_room"]

_QUALITY = 90  # of the copies' JPEG
_LEAST_SIDE_PX = 128
_BYTES_PER_PIXEL = 1.0  # photographs take 0.3 to 0.5 at this quality


@dataclass(frozen=True, kw_only=True, slots=True)
class Copies:
    """Copies that were made.

    Args:
        root: their folder of class folders (all are of one class).
        side_px: their shorter side, where the original's is not shorter.
        images: how many.
        as_they_are: how many of them are the original files.
        file_bytes: the mean size of their files.
        seconds: how long making them took.
    """

    root: Path
    side_px: int
    images: int
    as_they_are: int
    file_bytes: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The copies, JSON-able; names end in the units."""
        return {
            "shorter_side_px": self.side_px,
            "jpeg_quality": _QUALITY,
            "images": self.images,
            "copied_as_they_are": self.as_they_are,
            "file_bytes_mean": self.file_bytes,
            "seconds": self.seconds,
        }


def copies_side(size_px: int) -> int:
    """The shorter side of copies for images of a size: 256 px for 224, 128 px for 112.

    The smallest of 128, 256, 512, ... that leaves the crop the eighth that is usually cut off.
    """
    side_px = _LEAST_SIDE_PX
    while 7 * side_px < 8 * size_px:
        side_px *= 2
    return side_px


def _copies_bytes(survey: Survey, side_px: int) -> int:
    """What copies take on the disk at most, roughly."""
    total = 0.0
    for look in survey.looks:
        scale = side_px / min(look.height_px, look.width_px)
        smaller = look.height_px * look.width_px * scale**2 * _BYTES_PER_PIXEL
        total += smaller if scale < 1 else look.file_bytes
    return round(total)


def no_room(folder: Path, needed_bytes: int) -> str:
    """Why so much should not be written to a folder, or "". Half of what is free is left free."""
    free = shutil.disk_usage(folder).free
    if needed_bytes > free / 2:
        return f"they need up to {_mb(needed_bytes)}, and {folder} has {_mb(free)} free"
    if _in_memory(folder):
        available = available_memory_bytes()
        if needed_bytes > available / 2:
            return (
                f"they need up to {_mb(needed_bytes)} of memory, in which {folder} lies, and "
                f"{_mb(available)} are available"
            )
    return ""


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"


def _in_memory(folder: Path) -> bool:
    path = folder.resolve()
    mounts = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    nearest = max(mounts, key=lambda mount: len(mount.mountpoint), default=None)
    return nearest is not None and nearest.fstype in ("tmpfs", "ramfs")


@contextlib.contextmanager
def copies(
    pool: Pool,
    folder: ImageFolder,
    survey: Survey,
    side_px: int,
    *,
    advance: Callable[[int], None],
    parent: Path | None = None,
) -> Iterator[Copies | str]:
    """Make copies of the images of a survey; they are gone when the context ends.

    Args:
        pool: makes them, all processes at once.
        folder: the originals.
        survey: which of them.
        side_px: the copies' shorter side.
        advance: called with how many are made.
        parent: where to; None takes the system's folder for temporary files.

    Yields:
        The copies, in the survey's order, or why there are none.
    """
    started, done, share = time.perf_counter(), itertools.count(1), len(pool)
    with contextlib.ExitStack() as stack:
        made: Copies | str
        try:
            made = no_room(parent or Path(tempfile.gettempdir()), _copies_bytes(survey, side_px))
            if survey.smaller_than(side_px + 1) == len(survey.looks):
                made = f"no image has a shorter side above {side_px} px"
            if not made:
                root = stack.enter_context(temporary_folder(parent))
                (root / "images").mkdir()
                numbers = list(enumerate(survey.numbers))
                jobs = [(folder, numbers[k::share], side_px, root / "images") for k in range(share)]
                files = list(
                    itertools.chain(*pool.each(_make, jobs, lambda _: advance(next(done))))
                )
                made = _described(root, side_px, files, time.perf_counter() - started)
        except OSError as error:
            stack.close()
            made = f"they cannot be written: {error}; TMPDIR names another folder for them"
        yield made


def _described(
    root: Path, side_px: int, files: Sequence[tuple[int, bool]], seconds: float
) -> Copies | str:
    """The copies, by their bytes and whether they are originals, or why there are none."""
    if not files:
        return "not one original could be read again"
    return Copies(
        root=root,
        side_px=side_px,
        images=len(files),
        as_they_are=sum(unchanged for _, unchanged in files),
        file_bytes=sum(size for size, _ in files) / len(files),
        seconds=seconds,
    )


def _make(
    keep: Keep,
    tell: Tell,
    folder: ImageFolder,
    numbers: Sequence[tuple[int, int]],
    side_px: int,
    target: Path,
) -> list[tuple[int, bool]]:
    """Copy images (position, sample number); the copies' bytes and whether they are originals."""
    decoder = Decoder()
    made: list[tuple[int, bool]] = []
    for position, sample in numbers:
        try:
            data = read_file(folder.files.path(sample))
            height, width = decoder.open(data)
            pixels = decoder.read()
        except ImageError:  # removed since it was looked at
            continue
        unchanged = min(height, width) <= side_px
        # Named by position, so that the copies' sample numbers are the survey's order.
        ending = Path(folder.path(sample)).suffix if unchanged else ".jpg"
        path = target / f"{position:06}{ending}"
        if unchanged:
            path.write_bytes(data)
        else:
            scale = side_px / min(height, width)
            small = Image.fromarray(pixels).resize(
                (round(width * scale), round(height * scale)), Image.Resampling.BICUBIC
            )
            small.save(path, quality=_QUALITY)
        made.append((path.stat().st_size, unchanged))
        tell(sample)
    return made
