"""Verification of image files, and of a cache: each copy and the index; and repair of the damage.

Guarantees: a verification changes nothing. Damage is reported, not raised, and hides no other
damage, even if reading a file ends a process. Only an unreadable manifest is an error. A repair
builds shards with damaged copies again from the originals: intact copies stay unchanged and
readable, and files are replaced atomically; it can be repeated if it was interrupted. Originals
that have changed since the build are refused, so the repaired cache has the bytes of the first
build. The LMDB of a resolution is written to a new file that replaces the old one. If the index is
damaged, everything is built again.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from feedline.cache.build import refuse_changes
from feedline.cache.destination import open_destination
from feedline.cache.job import CacheJob, current_fingerprint, open_workers, remove_unfinished
from feedline.cache.shard import ExistingCopies, damaged_shards, write_records
from feedline.cache.source import open_cache_source
from feedline.cache.spec import Estimate, Spec, count_samples, split_into_shards
from feedline.engine.defaults import worker_count
from feedline.errors import DatasetError, FeedlineError, ImageError, SampleError
from feedline.images.codec_registry import Decoder
from feedline.loader import DataLoader
from feedline.sources.cache_format_base import LevelReader
from feedline.sources.cache_formats import cache_format
from feedline.sources.cache_store import CacheLocation
from feedline.sources.files import sync_names
from feedline.sources.manifest import CacheIndex, Manifest, index_damage
from feedline.sources.remote_cache import open_location
from feedline.system import write_through
from feedline.text import ProgressCallback, plural

__all__ = [
    "BrokenSamples",
    "Damage",
    "FileDamage",
    "Repair",
    "SampleRange",
    "Verification",
    "broken_images",
    "check_ranges",
    "count_copies",
    "repair_cache",
    "verify",
]

_RANGE = 256  # samples that a worker checks at a time
_FILES = 32  # image files that a worker decodes at a time
_FATAL = "reading it ends the process: its file is damaged, or shrank while it was read"


class Damage(NamedTuple):
    """An image that differs from the one written.

    Args:
        level: resolution of the copy, in pixels.
        sample: number in the cache.
        name: name in the source.
        file: path of the file that holds it.
        why: description of the damage.
    """

    level: int
    sample: int
    name: str
    file: str
    why: str


class FileDamage(NamedTuple):
    """A shard or database that is missing or has another size.

    Args:
        file: its path.
        why: description of the damage.
        images: number of damaged images in it.
    """

    file: str
    why: str
    images: int


@dataclass(frozen=True)
class Verification:
    """Result of a verification.

    Args:
        images: number of checked images of all resolutions together.
        damaged: damaged images by resolution and number.
        files: shards and databases that are missing or have another size; their images are in
            `damaged`, too.
        index: damaged files of the index, with the reason.
    """

    images: int
    damaged: tuple[Damage, ...]
    files: tuple[FileDamage, ...]
    index: tuple[str, ...]

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
        reader = location.reader(manifest, level, location.index(manifest))
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
        readers = {level.side: location.reader(manifest, level, index) for level in manifest.levels}
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


@dataclass(frozen=True)
class Repair:
    """Result of a repair.

    Args:
        verification: the damage that was found.
        images: number of copies written; more than were damaged, as shards are written whole.
    """

    verification: Verification
    images: int


def repair_cache(
    root: str | os.PathLike[str],
    *,
    source: Any = None,
    workers: int | str = "auto",
    progress: ProgressCallback = lambda stage, done, total: None,
) -> Repair:
    """Rebuild damaged copies, shards, databases and index files of a cache.

    All copies are checked first. An interrupted repair can be repeated.

    Args:
        root: folder or URL of the cache.
        source: source of the cache if it has moved; must hold the same samples.
        workers: number of processes; "auto" for one per usable core.
        progress: called with "checking" or "repairing", the number of images done, and the total.

    Raises:
        DatasetError: there is no cache, or its source is missing or has changed.
        ImageError: an original is broken; names it.
        ResourceError: not enough disk space.
        UsageError: an argument is invalid, or a build is running in the cache.

    Example:
        >>> feedline.repair_cache("train-cache/").verification.damaged            # doctest: +SKIP
    """
    destination = open_destination(root)
    with open_workers(workers, None) as pool, destination.lock_cache() as manifest:
        found = verify(root, workers=workers, progress=lambda *at: progress("checking", *at))
        if found.is_sound and not index_damage(destination.root, manifest):
            return Repair(found, 0)
        images = open_cache_source(destination.root, manifest, source)
        spec = Spec.of(manifest, destination.root)
        job = CacheJob(images, spec, pool, destination)
        return Repair(found, _rebuild(job, manifest, found, progress))


def _rebuild(
    job: CacheJob, manifest: Manifest, found: Verification, progress: ProgressCallback
) -> int:
    """Build damaged shards again, or all if the index is damaged. Return the number of copies."""
    images, spec, where = job.source, job.spec, job.spec.root
    format = cache_format(manifest.format)
    shards = todo = split_into_shards(manifest.samples_in_source, manifest.per_shard)
    existing = index = None
    if not index_damage(where, manifest):
        index = CacheIndex(where, manifest)
        refuse_changes(manifest, images, index)
        rows = {each.sample for each in found.damaged}
        if job.destination.is_local:
            existing = ExistingCopies(where, manifest, rows)
        if not format.merged_file:
            damaged = {int(index.keys[row]) // manifest.per_shard for row in rows}
            damaged |= damaged_shards(where, manifest)
            todo = [shard for shard in shards if shard.number in damaged]
    elif current_fingerprint(images, manifest) != manifest.fingerprint:
        raise DatasetError(
            f"the names or labels of the images in {images.where!r} have changed since the cache "
            f"{where!r} was built, and its damaged index does not tell what is missing",
            hint="restore the images, or remove the cache and build it again",
        )
    total, count = count_samples(todo), max(1, manifest.samples_in_source)
    sizes = tuple(each.bytes / count for each in manifest.levels)
    expected = Estimate(spec.levels, count, copy_bytes=sizes, seconds=0.0)
    with job.unfinished_work():
        remove_unfinished(spec)  # of a repair that was killed
        spec.unfinished.mkdir(exist_ok=True)
        try:
            if todo is not shards:
                write_records(spec, manifest)
            # Other processes may read the existing LMDB.
            apart = replace(spec, root=str(spec.unfinished)) if format.merged_file else spec
            parts = replace(job, spec=apart)
            parts.check_disk_space(expected, todo)
            parts.build_shards(
                expected, todo, lambda done: progress("repairing", done.new_images, total), existing
            )
            index = None
            if existing is not None:
                existing.close()
            if apart is not spec:
                for level in spec.levels:
                    path = Path(level.name, format.merged_file)
                    new, replaced = Path(apart.root, path), Path(where, path)
                    replaced.parent.mkdir(exist_ok=True)
                    write_through(new)
                    os.replace(new, replaced)
                    sync_names(where, [replaced])
            job.finish(shards, manifest.per_shard)
        finally:
            remove_unfinished(spec)
    return total * len(spec.levels)


def broken_images(
    files: Sequence[Path],
    *,
    workers: int | str = "auto",
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> list[tuple[Path, str]]:
    """Decode all images and return the files that are broken, with the reasons, in their order.

    A file is broken exactly if a loader that decodes all of it fails.

    Args:
        files: image files.
        workers: number of processes, at least one; "auto" for the cores this process may use.
        progress: called with the number of images decoded, and of all.

    Raises:
        UsageError: the number of workers is invalid.
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
