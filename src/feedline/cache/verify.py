"""Whether a cache is what was written: each image of each level, and the index.

Guarantees: nothing is changed; whatever the files hold, damage is told and not raised, and what is
broken hides nothing else, also where reading it ends a process; only a manifest that cannot be read
is an error.

Relies on: the checksums that a build took of the bytes which it wrote; `loader` for the workers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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

__all__ = ["Damage", "Verification", "damaged_units", "file_damage", "verify"]

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


class _Piece(NamedTuple):
    """Samples from `start` up to `stop` of a level, by its place in the manifest."""

    level: int
    start: int
    stop: int


class _Pieces:
    """The pieces of a cache as a dataset: reading one checks it.

    Args:
        location: where the cache lies.
        manifest: what it holds.
        decode: decode the JPEGs as well.
        pieces: all of them.
    """

    def __init__(
        self, location: CacheLocation, manifest: Manifest, decode: bool, pieces: Sequence[_Piece]
    ) -> None:
        self._location, self._manifest, self._decode, self.all = location, manifest, decode, pieces

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, at: int) -> tuple[int, list[tuple[int, str]]]:
        """Check a piece: its number, and which samples are damaged, and why."""
        place, start, stop = self.all[at]
        level = self._manifest.levels[place]
        try:
            reader = self._reader(level)
        except DatasetError as error:
            return at, [(sample, str(error)) for sample in range(start, stop)]
        decoder = Decoder(max_pixels=DEFAULT_MAX_PIXELS) if self._decode else None
        damaged = []
        try:
            reader.prepare(range(start, stop))
            for sample in range(start, stop):
                why = _what_is_wrong(reader, sample, decoder)
                if why:
                    damaged.append((sample, why))
        finally:
            reader.close()
        return at, damaged

    def _reader(self, level: Level) -> LevelReader:
        return self._location.reader(self._manifest, level, self._location.index(self._manifest))


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
        _Piece(place, start, min(start + _IN_PIECE, manifest.samples))
        for place in range(len(manifest.levels))
        for start in range(0, manifest.samples, _IN_PIECE)
    ]
    total, done = manifest.samples * len(manifest.levels), 0
    progress(done, total)
    damaged: list[Damage] = []
    while pieces:
        lost = set(pieces)
        for piece, found in _checked(_Pieces(location, manifest, decode, pieces), processes):
            lost.remove(piece)
            side = manifest.levels[piece.level].side
            damaged += (Damage(side, sample, "", "", why) for sample, why in found)
            done += piece.stop - piece.start
            progress(done, total)
        # What ended its worker is looked at sample by sample, and those that do it again are told.
        pieces = []
        for place, start, stop in lost:
            if stop - start > 1:
                pieces += (_Piece(place, sample, sample + 1) for sample in range(start, stop))
            else:
                damaged.append(Damage(manifest.levels[place].side, start, "", "", _FATAL))
                done += 1
    return Verification(done, tuple(sorted(_named(location, manifest, damaged))), files, index)


def _checked(pieces: _Pieces, workers: int) -> Iterator[tuple[_Piece, list[tuple[int, str]]]]:
    """Check pieces by worker processes, as they come; those that end their workers are missing."""
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
