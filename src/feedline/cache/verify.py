"""Whether a cache is what was written: each image of each level, and the index.

Guarantees: nothing is changed; whatever the files hold, damage is told and not raised, and what is
broken hides nothing else, also where reading it ends a process; only a manifest that cannot be read
is an error.

Relies on: the checksums that a build took of the bytes which it wrote; `loader` for the workers.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from feedline.errors import DatasetError, FeedlineError, ImageError, SampleError
from feedline.images.decode import DEFAULT_MAX_PIXELS, Decoder
from feedline.loader import DataLoader
from feedline.loader.checks import worker_count
from feedline.remote.open_location import location_of
from feedline.stores.cache_index import CacheIndex, index_damage, load_entries
from feedline.stores.cache_layout import LMDB_FILE, Level, Manifest, shard_name
from feedline.stores.cache_level import LevelReader, reader_of
from feedline.stores.cache_location import CacheLocation, FolderLocation
from feedline.stores.open_lmdb import open_lmdb

__all__ = [
    "Broken",
    "Damage",
    "Piece",
    "Verification",
    "check_pieces",
    "damaged_units",
    "file_damage",
    "verify",
]

_IN_PIECE = 256  # samples that a worker checks at a time
_FATAL = "to read it ends the process that does: its file is damaged, or shrank while it was read"


class Damage(NamedTuple):
    """An image that is not what was written.

    Args:
        level: of which copies, in pixels.
        sample: its number in the cache.
        name: what it is called in the source.
        file: the path of what holds it.
        why: what is wrong.
    """

    level: int
    sample: int
    name: str
    file: str
    why: str


@dataclass(frozen=True)
class Verification:
    """What a check has found.

    Args:
        images: how many were checked, those of all levels together.
        damaged: those that are not what was written, by level and number.
        files: shards and databases that are missing or have another size, and why.
        index: files of the index that are not what was written, and why.
    """

    images: int
    damaged: tuple[Damage, ...]
    files: tuple[str, ...]
    index: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not (self.damaged or self.files or self.index)


class Piece(NamedTuple):
    """Samples from `start` up to `stop` of a level, by its place in the manifest."""

    level: int
    start: int
    stop: int


Broken: TypeAlias = list[tuple[int, str]]
"""Samples that are damaged, with the reasons."""


class _Pieces:
    """Pieces as a dataset: item k is k and the damaged samples of piece k."""

    def __init__(self, check: Callable[[Piece], Broken], pieces: Sequence[Piece]) -> None:
        self._check, self.all = check, pieces

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, at: int) -> tuple[int, Broken]:
        return at, self._check(self.all[at])


def check_pieces(
    check: Callable[[Piece], Broken], pieces: Sequence[Piece], workers: int
) -> Iterator[tuple[Piece, Broken]]:
    """Check pieces in worker processes, in any order.

    A piece that ends its worker is checked again sample by sample, and samples that do it again are
    broken.

    Args:
        check: checks one piece; picklable.
        pieces: the pieces.
        workers: number of processes, at least one.
    """
    while pieces:
        lost = set(pieces)
        for piece, found in _checked(_Pieces(check, pieces), workers):
            lost.remove(piece)
            yield piece, found
        pieces = []
        for level, start, stop in lost:
            if stop - start > 1:
                pieces += (Piece(level, sample, sample + 1) for sample in range(start, stop))
            else:
                yield Piece(level, start, stop), [(start, _FATAL)]


def _check_copies(
    location: CacheLocation, manifest: Manifest, decode: bool, piece: Piece
) -> Broken:
    """Check copies of one level."""
    level = manifest.levels[piece.level]
    try:
        reader = location.reader(manifest, level, location.index(manifest))
    except DatasetError as error:
        return [(sample, str(error)) for sample in range(piece.start, piece.stop)]
    decoder = Decoder(max_pixels=DEFAULT_MAX_PIXELS) if decode else None
    damaged = []
    try:
        reader.prepare(range(piece.start, piece.stop))
        for sample in range(piece.start, piece.stop):
            why = _what_is_wrong(reader, sample, decoder)
            if why:
                damaged.append((sample, why))
    finally:
        reader.close()
    return damaged


def _what_is_wrong(reader: LevelReader, sample: int, decoder: Decoder | None) -> str:
    try:
        image = reader.read(sample)
        if decoder is not None and isinstance(image, bytes):
            decoder.open(image)
            decoder.read()
    except FeedlineError as error:
        return str(error)
    except Exception as error:  # an index that holds anything: the other samples are checked too
        return f"{type(error).__name__}: {error}"
    return ""


def verify(
    root: str | os.PathLike[str],
    *,
    decode: bool = False,
    workers: int | str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Check every image of a cache against its checksum, and the files of its index.

    Args:
        root: the cache's folder; or its URL, from which all images are then read.
        decode: decode the JPEGs as well, which takes several times as long.
        workers: processes, at least one; "auto" for the cores that this process may use.
        progress: called with how many images are checked, of how many.

    Raises:
        DatasetError: there is no cache, or its manifest cannot be read.
    """
    processes = worker_count(workers)
    location = location_of(root, keep=False)
    manifest = location.manifest()
    index, files = _damaged_files(location, manifest)
    pieces = [
        Piece(place, start, min(start + _IN_PIECE, manifest.samples))
        for place in range(len(manifest.levels))
        for start in range(0, manifest.samples, _IN_PIECE)
    ]
    total, done = manifest.samples * len(manifest.levels), 0
    progress(done, total)
    damaged: list[Damage] = []
    check = functools.partial(_check_copies, location, manifest, decode)
    for piece, found in check_pieces(check, pieces, processes):
        side = manifest.levels[piece.level].side
        damaged += (Damage(side, sample, "", "", why) for sample, why in found)
        done += piece.stop - piece.start
        progress(done, total)
    return Verification(done, tuple(sorted(_named(location, manifest, damaged))), files, index)


def _checked(pieces: _Pieces, workers: int) -> Iterator[tuple[Piece, Broken]]:
    """Check pieces in worker processes; those that end their workers are missing."""
    loader: DataLoader[Any] = DataLoader(
        pieces,  # type: ignore[arg-type]
        batch_size=None,
        num_workers=max(1, min(workers, len(pieces))),
        in_order=False,
    )
    with loader:
        checked = iter(loader)
        while True:
            with contextlib.suppress(SampleError):
                for at, found in checked:
                    yield pieces.all[at], found
                return


def _named(location: CacheLocation, manifest: Manifest, damaged: Sequence[Damage]) -> list[Damage]:
    """With the names of the samples and their files, where the index still knows them."""
    if not damaged:
        return []
    try:
        index = location.index(manifest)
        readers = {level.side: location.reader(manifest, level, index) for level in manifest.levels}
        return [
            each._replace(name=index.name(each.sample), file=readers[each.level].path(each.sample))
            for each in damaged
        ]
    except Exception:  # an index that holds anything
        return list(damaged)


def _damaged_files(
    location: CacheLocation, manifest: Manifest
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files of the index that are not what was written, and shards and databases, with why."""
    if not isinstance(location, FolderLocation):
        try:
            location.index(manifest)
        except DatasetError as error:
            return (str(error),), ()
        return (), ()  # of shards that are short, images are missing
    levels = manifest.levels
    files = [
        said for level in levels for said in file_damage(location.root, manifest, level).values()
    ]
    return index_damage(location.root, manifest), tuple(files)


def file_damage(where: str, manifest: Manifest, level: Level) -> dict[int, str]:
    """The shards of a level whose files are missing or have another size, and why.

    An LMDB that is missing or cut short counts as shard 0. Of single images nothing is looked at.
    """
    folder = Path(where, level.name)
    found = {}
    if manifest.format == "lmdb":
        try:
            (folder / LMDB_FILE).stat()
            open_lmdb(str(folder))
        except OSError as error:
            found[0] = f"{folder / LMDB_FILE}: {error.strerror or error}"
        except ImageError as error:
            found[0] = str(error)
    for number, size in enumerate(level.shards if manifest.format == "webdataset" else ()):
        path = folder / shard_name(number)
        try:
            has = path.stat().st_size
        except OSError as error:
            found[number] = f"{path}: {error.strerror or error}"
            continue
        if has != size:
            found[number] = f"{path}: it has {has} bytes, and {size} were written"
    return found


def damaged_units(where: str, manifest: Manifest) -> set[int]:
    """The units of which a file is missing or has another size, by a look at no file's content.

    Args:
        where: the folder of a cache, whose index is sound.
        manifest: of the cache.
    """
    found: set[int] = set()
    for level in manifest.levels:
        files = file_damage(where, manifest, level)
        found |= set(range(len(level.shards)) if manifest.format == "lmdb" and files else files)
        if manifest.format == "folder" and _bytes_below(Path(where, level.name)) != level.bytes:
            index = CacheIndex(where, manifest)
            reader = reader_of(where, manifest, level, index)
            sizes = load_entries(where, level, manifest.samples)[:, 2].tolist()
            for row, size in enumerate(sizes):
                if _size_of(reader.path(row)) != size:
                    found.add(int(index.keys[row]) // manifest.per_shard)
    return found


def _bytes_below(folder: Path) -> int:
    return sum(
        _size_of(os.path.join(below, name)) for below, _, names in os.walk(folder) for name in names
    )


def _size_of(path: str) -> int:
    """The size of a file in bytes; -1 if it is missing."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1
