"""Makes the units that a cache, or a new level of one, still lacks.

Guarantees: nothing half-written is left, however it ends, and what was done stays for the next
time; a disk that cannot hold the result is said before.

Relies on: `makers` for who makes them, `destination` for where they go.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.filesize import decimal

from feedline.cache.build_plan import Estimate
from feedline.cache.delivery import make_level_folders
from feedline.cache.destination import Destination
from feedline.cache.kept import Kept
from feedline.cache.lmdb_writer import LmdbWriter
from feedline.cache.makers import Makers
from feedline.cache.settings import Spec, Unit
from feedline.cache.source import Source
from feedline.cache.unit import Units
from feedline.cache.whole_file import PARTIAL, disk_told
from feedline.errors import ResourceError
from feedline.stores.cache_layout import INDEX, MANIFEST

__all__ = ["Progress", "Report", "check_room", "make_units", "unfinished_work"]

_SPARE = 1.05  # of the disk: the estimate is of a few images


@dataclass(frozen=True)
class Progress:
    """How far a build has come.

    Args:
        estimate: what is to be made.
        images: how many are done, those of an earlier build included.
        made: how many of them this build made.
        makers: how many processes make them at a time.
    """

    estimate: Estimate
    images: int
    made: int
    makers: int


Report = Callable[[Progress], None]


@contextlib.contextmanager
def unfinished_work(spec: Spec) -> Iterator[None]:
    """The folder of what is done so far is there; afterwards nothing half-written is."""
    try:
        with disk_told(spec.root):
            spec.unfinished.mkdir(exist_ok=True)
            yield
    finally:
        _tidy(spec)


def check_room(
    spec: Spec, expected: Estimate, todo: Sequence[Unit], makers: Makers, destination: Destination
) -> None:
    """See whether the disk can hold what is to be made, or as much of it as stays on it.

    Raises:
        ResourceError: it cannot.
    """
    if not destination.keeps:
        if makers.elsewhere:
            return
        todo = todo[: makers.count()]
    share = _images(todo) / expected.images
    needed_by = [round(size * share) for size in expected.level_bytes]
    needed = sum(needed_by) * _SPARE
    if spec.format == "lmdb":
        needed += max(needed_by)  # of what waits to go in
    free = shutil.disk_usage(spec.root).free
    if needed > free and not destination.keeps:
        raise ResourceError(
            f"{makers.count()} shards of each size, which are made at a time before they are "
            f"uploaded, need about {decimal(round(needed))}, and {tempfile.gettempdir()!r} has "
            f"{decimal(free)} free: name another folder in $TMPDIR, or fewer workers"
        )
    if needed > free:
        sizes = ", ".join(
            f"{level} {decimal(size)}" for level, size in zip(spec.levels, needed_by, strict=True)
        )
        raise ResourceError(
            f"the cache needs about {decimal(round(needed))} ({sizes}), and {spec.root!r} has "
            f"{decimal(free)} free; choose fewer or smaller sizes, a lower quality, JPEG "
            "instead of raw, or another disk"
        )


def make_units(
    source: Source,
    spec: Spec,
    expected: Estimate,
    todo: Sequence[Unit],
    makers: Makers,
    destination: Destination,
    progress: Report,
    kept: Kept | None = None,
) -> None:
    """Make some units.

    Args:
        source: what the images come from.
        spec: how.
        expected: what comes of it.
        todo: those that are not done.
        makers: who makes them.
        destination: where they go.
        progress: called again and again, once before the first unit.
        kept: copies that need not be made.
    """
    done, images = expected.images - _images(todo), 0
    make_level_folders(spec)
    destination.publish()
    progress(Progress(expected, done, 0, makers.count()))
    units = Units(source, spec, todo, destination.delivery(makers.elsewhere), kept)
    with contextlib.ExitStack() as opened:
        lmdb = None
        if spec.format == "lmdb":
            sizes = [2 * size for size in expected.level_bytes]
            lmdb = opened.enter_context(LmdbWriter(spec.root, spec.levels, sizes))
        for made in opened.enter_context(makers.made(units)):
            destination.accept(made.files)
            if lmdb is not None:
                lmdb.put(made.number)
            images += made.images
            progress(Progress(expected, done + images, images, makers.count()))


def _images(units: Sequence[Unit]) -> int:
    return sum(unit.stop - unit.start for unit in units)


def _tidy(spec: Spec) -> None:
    """Leave no half-written files behind, and no folders of a build that has done nothing."""
    root = Path(spec.root)
    levels = [root / level.name for level in spec.levels]
    folders = (*levels, root / INDEX, spec.unfinished)
    for partial in chain(root.glob(PARTIAL), *(folder.rglob(PARTIAL) for folder in folders)):
        with contextlib.suppress(OSError):
            partial.unlink()
    if spec.unfinished.is_dir() and not any(spec.unfinished.glob("*.npz")):
        shutil.rmtree(spec.unfinished, ignore_errors=True)
        if spec.adds or not (root / MANIFEST).exists():
            for level in levels:
                shutil.rmtree(level, ignore_errors=True)
