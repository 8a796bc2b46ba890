"""Verification of image files, and of a cache: each copy and the index.

Guarantees: a verification changes nothing. Damage is reported, not raised, and hides no other
damage, even if reading a file ends a process. Only an unreadable manifest is an error.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from feedline.engine.defaults import worker_count
from feedline.errors import DatasetError, FeedlineError, ImageError, SampleError
from feedline.images.codec_registry import Decoder
from feedline.loader import DataLoader
from feedline.sources.cache_format_base import LevelReader
from feedline.sources.cache_formats import cache_format
from feedline.sources.cache_store import CacheLocation
from feedline.sources.manifest import Manifest, index_damage
from feedline.sources.remote_cache import open_location
from feedline.text import plural

_RANGE = 256  # samples that a worker checks at a time
_FILES = 32  # image files that a worker decodes at a time
_FATAL = "reading it ends the process: its file is damaged, or shrank while it was read"


class Damage(NamedTuple):
    """An image that differs from the one written."""

    level: int  # resolution of the copy, in pixels
    sample: int  # number in the cache
    name: str  # in the source
    file: str  # path of the file that holds it
    why: str  # description of the damage


class FileDamage(NamedTuple):
    """A shard or database that is missing or has another size."""

    file: str  # its path
    why: str  # description of the damage
    images: int  # number of damaged images in it


@dataclass(frozen=True)
class Verification:
    """Result of a verification."""

    images: int  # number of checked images of all resolutions together
    damaged: tuple[Damage, ...]  # by resolution and number, also those in `files`
    files: tuple[FileDamage, ...]
    index: tuple[str, ...]  # damaged files of the index, with the reason

    @property
    def is_sound(self) -> bool:
        """True if nothing is damaged."""
        return not (self.damaged or self.files or self.index)

    def __str__(self) -> str:
        """Numbers of damaged copies and files."""
        files = len(self.index) + len(self.files)
        parts = (
            count_copies(len(self.damaged), "damaged ") * bool(self.damaged),
            plural(files, "damaged file") * bool(files),
        )
        return ", ".join(filter(None, parts)) or "nothing is damaged"

    @property
    def problems(self) -> list[str]:
        """One line for each damaged file, and for the copies in it with the same problem."""
        lines = list(self.index)
        lines += (
            f"{each.file}: {each.why}; {count_copies(each.images)} affected" for each in self.files
        )
        listed = {each.file for each in self.files}
        groups: dict[tuple[str, str], list[Damage]] = {}
        for each in self.damaged:
            if each.file not in listed:
                # If the index is damaged, a sample has neither file nor name.
                place = each.file or f"{each.level} px"
                groups.setdefault((place, each.why), []).append(each)
        for (place, why), damaged in groups.items():
            first = damaged[0]
            name = f"sample {first.sample}{first.name and f', {first.name}'}"
            more = f", and {len(damaged) - 1} more" * (len(damaged) > 1)
            lines.append(f"{place}: {name}{more}: {why}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Damaged copies, files and index files, JSON-able."""
        damaged, files = ([each._asdict() for each in part] for part in (self.damaged, self.files))
        return {"damaged": damaged, "files": files, "index": self.index}


def count_copies(number: int, kind: str = "") -> str:
    """Number of copies as text, such as "1 damaged copy"."""
    return f"{number} {kind}{'copy' if number == 1 else 'copies'}"


class SampleRange(NamedTuple):
    """Samples `start:stop` of the resolution at a position in the manifest."""

    level: int
    start: int
    stop: int


BrokenSamples: TypeAlias = list[tuple[int, str]]
"""Numbers of damaged samples, with the reasons."""


@dataclass(frozen=True, eq=False)
class _RangeDataset:
    """Ranges as a dataset: an item is a range and its damaged samples."""

    check: Callable[[SampleRange], BrokenSamples]
    ranges: Sequence[SampleRange]

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, at: int) -> tuple[SampleRange, BrokenSamples]:
        return self.ranges[at], self.check(self.ranges[at])


def check_ranges(
    check: Callable[[SampleRange], BrokenSamples], ranges: Sequence[SampleRange], workers: int
) -> Iterator[tuple[SampleRange, BrokenSamples]]:
    """Check ranges of samples by a picklable function in worker processes, in any order.

    A range that ends its worker is checked again sample by sample; samples that end it again are
    broken.
    """
    while ranges:
        lost = set(ranges)
        loader: DataLoader[Any] = DataLoader(
            _RangeDataset(check, ranges),  # type: ignore[arg-type]
            batch_size=None,
            num_workers=max(1, min(workers, len(ranges))),
            in_order=False,
        )
        with loader:
            results = iter(loader)
            while True:
                with contextlib.suppress(SampleError):  # a range ended its worker
                    for samples, found in results:
                        lost.remove(samples)
                        yield samples, found
                    break
        ranges = []
        for level, start, stop in lost:
            if stop - start > 1:
                ranges += (SampleRange(level, sample, sample + 1) for sample in range(start, stop))
            else:
                yield SampleRange(level, start, stop), [(start, _FATAL)]


def _check_copies(
    location: CacheLocation, manifest: Manifest, decode: bool, samples: SampleRange
) -> BrokenSamples:
    """Check copies of one resolution."""
    level, numbers = manifest.levels[samples.level], range(samples.start, samples.stop)
    try:
        reader = location.reader(location.index(manifest), level)
    except DatasetError as error:
        return [(sample, error.message) for sample in numbers]
    decoder = Decoder() if decode else None
    try:
        reader.prepare(numbers)
        problems = ((sample, _find_problem(reader, sample, decoder)) for sample in numbers)
        return [(sample, problem) for sample, problem in problems if problem]
    finally:
        reader.close()


def _find_problem(reader: LevelReader, sample: int, decoder: Decoder | None) -> str:
    try:
        image = reader.read(sample)
        reader.check_entry(sample)
        if decoder is not None and isinstance(image, bytes):
            decoder.open(image)
            decoder.read()
    except FeedlineError as error:
        return error.message
    except Exception as error:  # of a damaged index: the other samples are checked, too
        return f"{type(error).__name__}: {error}"
    return ""


def verify(
    root: str | os.PathLike[str],
    *,
    decode: bool = False,
    workers: int | str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Check every image of a cache against its checksum, tar headers of local caches, and the files
    of the index.

    With `decode`, JPEGs are decoded as well, which needs several times as long. `progress` is
    called with the numbers of checked images and of all. Only an unreadable manifest is a
    DatasetError.
    """
    processes = worker_count(workers)
    location = open_location(root, stores_copies=False)
    manifest = location.manifest()
    index, files = _damaged_files(location, manifest)
    ranges = [
        SampleRange(place, start, min(start + _RANGE, manifest.samples))
        for place in range(len(manifest.levels))
        for start in range(0, manifest.samples, _RANGE)
    ]
    total, done = manifest.samples * len(manifest.levels), 0
    progress(done, total)
    damaged: list[Damage] = []
    check = functools.partial(_check_copies, location, manifest, decode)
    for samples, found in check_ranges(check, ranges, processes):
        side = manifest.levels[samples.level].side
        damaged += (Damage(side, sample, "", "", why) for sample, why in found)
        done += samples.stop - samples.start
        progress(done, total)
    damaged = sorted(_add_names(location, manifest, damaged))
    counts = Counter(each.file for each in damaged)
    broken = tuple(FileDamage(path, why, counts[path]) for path, why in files)
    return Verification(done, tuple(damaged), broken, index)


def _add_names(
    location: CacheLocation, manifest: Manifest, damaged: Sequence[Damage]
) -> list[Damage]:
    """Add the names of the samples and their files, if the index is readable."""
    if not damaged:
        return []
    try:
        index = location.index(manifest)
        readers = {level.side: location.reader(index, level) for level in manifest.levels}
        return [
            each._replace(name=index.name(each.sample), file=readers[each.level].path(each.sample))
            for each in damaged
        ]
    except Exception:  # of a damaged index
        return list(damaged)


def _damaged_files(
    location: CacheLocation, manifest: Manifest
) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """Return damaged files of the index, and damaged shards and databases, with the reasons."""
    if not location.is_local:
        try:
            location.index(manifest)
        except DatasetError as error:
            return (error.message,), []
        return (), []  # truncated shards show as missing images
    format = cache_format(manifest.format)
    damage = (format.file_damage(location.root, level).values() for level in manifest.levels)
    files = list(chain.from_iterable(damage))
    return index_damage(location.root, manifest), files


def broken_images(
    files: Sequence[Path],
    *,
    workers: int | str = "auto",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[tuple[Path, str]]:
    """Decode all images and return the files that are broken, with the reasons, in their order.

    A file is broken exactly if a loader that decodes all of it fails. `progress` is called with the
    number of images decoded, and of all.
    """
    count, total = worker_count(workers), len(files)
    ranges = [
        SampleRange(0, start, min(start + _FILES, total)) for start in range(0, total, _FILES)
    ]
    broken, done = dict[int, str](), 0
    for samples, found in check_ranges(functools.partial(_check_files, files), ranges, count):
        broken |= found
        done += samples.stop - samples.start
        progress(done, total)
    return [(files[sample], broken[sample]) for sample in sorted(broken)]


def _check_files(files: Sequence[Path], samples: SampleRange) -> BrokenSamples:
    decoder, broken = Decoder(), []
    for sample in range(samples.start, samples.stop):
        try:
            decoder.open(files[sample].read_bytes())
            decoder.read()
        except ImageError as error:
            broken.append((sample, "; ".join(filter(None, (error.message, error.advice)))))
        except OSError as error:
            broken.append((sample, error.strerror or str(error)))
    return broken
