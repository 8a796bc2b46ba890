"""Smaller JPEG copies of some images in a temporary folder, to measure their effect.

Guarantees: the copies are removed however the work ends, unless this process is killed. If there
is no space for them or they cannot be written, the reason is returned, not raised. No image is
enlarged: a small image is copied unchanged.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from feedline.bench.pool import ProcessPool, ProcessState, Send
from feedline.bench.survey import Survey
from feedline.errors import ImageError
from feedline.images.codec_registry import Decoder
from feedline.images.folder import ImageFolder
from feedline.sources.files import read_file
from feedline.system import available_memory_bytes

__all__ = ["JpegCopies", "copies_side", "make_jpeg_copies", "space_problem", "temporary_folder"]


_QUALITY = 90  # of the copies' JPEG
_MIN_SIDE_PX = 128
_BYTES_PER_PIXEL = 1.0  # photographs take 0.3 to 0.5 at this quality


@dataclass(frozen=True, kw_only=True, slots=True)
class JpegCopies:
    """Finished copies.

    Args:
        root: their folder of class folders (all are in one class).
        side_px: their shorter side; smaller originals keep theirs.
        images: number of copies.
        unchanged: number of copies that are the original files.
        file_bytes: mean file size.
        seconds: time to make them.
    """

    root: Path
    side_px: int
    images: int
    unchanged: int
    file_bytes: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, JSON-able; names end in the units."""
        return {
            "shorter_side_px": self.side_px,
            "jpeg_quality": _QUALITY,
            "images": self.images,
            "copied_as_they_are": self.unchanged,
            "file_bytes_mean": self.file_bytes,
            "seconds": self.seconds,
        }


def copies_side(size_px: int) -> int:
    """Shorter side of the copies for images of a size: 256 px for 224, 128 px for 112.

    It is the smallest of 128, 256, 512, ... of which an evaluation crop of 7/8 has the size.
    """
    side_px = _MIN_SIDE_PX
    while 7 * side_px < 8 * size_px:
        side_px *= 2
    return side_px


def _copies_bytes(survey: Survey, side_px: int) -> int:
    """Upper estimate of disk space for the copies, in bytes."""
    total = 0.0
    for image in survey.images:
        scale = side_px / min(image.height_px, image.width_px)
        smaller = image.height_px * image.width_px * scale**2 * _BYTES_PER_PIXEL
        total += smaller if scale < 1 else image.file_bytes
    return round(total)


def space_problem(folder: Path, needed_bytes: int) -> str:
    """Why a folder lacks space for this many bytes, or "". Half of the free space stays free."""
    free = shutil.disk_usage(folder).free
    if needed_bytes > free / 2:
        return f"they need up to {_mb(needed_bytes)}, and {folder} has {_mb(free)} free"
    if _in_memory(folder):
        available = available_memory_bytes()
        if needed_bytes > available / 2:
            return (
                f"they need up to {_mb(needed_bytes)} of memory ({folder} is in memory), and "
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
def make_jpeg_copies(
    pool: ProcessPool,
    folder: ImageFolder,
    survey: Survey,
    side_px: int,
    *,
    advance: Callable[[int], None],
    parent: Path | None = None,
) -> Iterator[JpegCopies | str]:
    """Make copies of the images of a survey; they are removed when the context ends.

    Args:
        pool: its processes make the copies in parallel.
        folder: the originals.
        survey: the images to copy.
        side_px: the copies' shorter side.
        advance: called with the number of finished copies.
        parent: folder for the temporary folder; None uses the system's.

    Yields:
        The copies, in the survey's order, or the reason if none were made.
    """
    started, done, share = time.perf_counter(), itertools.count(1), len(pool)
    with contextlib.ExitStack() as stack:
        copies: JpegCopies | str
        try:
            copies = space_problem(
                parent or Path(tempfile.gettempdir()), _copies_bytes(survey, side_px)
            )
            if survey.count_smaller(side_px + 1) == len(survey.images):
                copies = f"no image has a shorter side above {side_px} px"
            if not copies:
                root = stack.enter_context(temporary_folder(parent))
                (root / "images").mkdir()
                numbers = list(enumerate(survey.numbers))
                jobs = [(folder, numbers[k::share], side_px, root / "images") for k in range(share)]
                files = list(
                    itertools.chain(*pool.each(_make, jobs, lambda _: advance(next(done))))
                )
                copies = _summarise(root, side_px, files, time.perf_counter() - started)
        except OSError as error:
            stack.close()
            copies = f"they cannot be written: {error}; set TMPDIR to another folder"
        yield copies


def _summarise(
    root: Path, side_px: int, files: Sequence[tuple[int, bool]], seconds: float
) -> JpegCopies | str:
    """Copies from (bytes, unchanged) of each file, or the reason if none is unchanged."""
    if not files:
        return "no original could be read again"
    return JpegCopies(
        root=root,
        side_px=side_px,
        images=len(files),
        unchanged=sum(unchanged for _, unchanged in files),
        file_bytes=sum(size for size, _ in files) / len(files),
        seconds=seconds,
    )


def _make(
    state: ProcessState,
    send: Send,
    folder: ImageFolder,
    numbers: Sequence[tuple[int, int]],
    side_px: int,
    target: Path,
) -> list[tuple[int, bool]]:
    """Copy images given as (position, sample number). Returns (bytes, unchanged) of each copy."""
    decoder = Decoder()
    made: list[tuple[int, bool]] = []
    for position, sample in numbers:
        try:
            data = read_file(folder.files.path(sample))
            height, width = decoder.open(data)
            pixels = decoder.read()
        except ImageError:  # removed since the survey
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
        send(sample)
    return made


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Create a folder that is removed with its files when the context ends, even by Ctrl-C.

    Args:
        parent: folder in which it is created; None uses the system's temporary folder.

    Raises:
        OSError: it cannot be created.
    """
    # A file that cannot be removed must not cost the results.
    folder = tempfile.TemporaryDirectory(
        prefix="feedline-bench-", dir=parent, ignore_cleanup_errors=True
    )
    try:
        yield Path(folder.name)
    finally:
        with _signals_deferred():
            folder.cleanup()


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the context, so that a second one does no harm."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    noted: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda signum, _: noted.append(signum)) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        if noted:
            signal.raise_signal(noted[0])
