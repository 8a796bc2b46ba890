"""Building of a shard of each resolution, and its record.

The record of a shard marks it as finished: the columns of its samples, and the sizes of its files.

Guarantees: building a shard again gives equal bytes, in any folder and on any machine. Its files
are written atomically, and its record is stored after they are on the disk, also after a power cut.
An interrupted shard leaves nothing. No record is unpickled; a damaged one counts as missing.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from feedline.cache.level_encoder import ResizedCopies
from feedline.cache.source import CacheSource
from feedline.cache.spec import ShardRange, Spec
from feedline.errors import FeedlineError, ImageError
from feedline.sources.cache_folder import refuse_link, sees_lock
from feedline.sources.cache_format_base import CacheSample
from feedline.sources.cache_formats import cache_format
from feedline.sources.files import report_disk_errors, write_atomic
from feedline.sources.manifest import COLUMNS, ENTRY, CacheIndex, Manifest, checksum
from feedline.sources.remote_files import RemoteFolder

Columns: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
ShardFiles: TypeAlias = "list[tuple[str, bytes | np.ndarray[Any, Any]]]"
"""File names relative to the cache's folder and their contents; the record is last."""

_OF_SOURCE = ("names", "name_ends", "stamps", "labels")
"""Columns of a record that show a change of the source; the labels of a Dataset are read last."""


class BuiltShard(NamedTuple):
    """A finished shard, its number of samples, and files that the builder must still store."""

    number: int
    images: int
    files: ShardFiles


@dataclass(eq=False)
class ShardDataset:
    """Shards as a dataset: reading one builds it, with copies of `existing` if it has them."""

    source: CacheSource
    spec: Spec
    shards: Sequence[ShardRange]
    transfer: ShardTransfer
    existing: ExistingCopies | None = None

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, at: int) -> BuiltShard | FeedlineError:
        """Build a shard, or return its error, to which a loader would add a traceback."""
        try:
            return self.build(at)
        except FeedlineError as error:
            return error

    def build(self, at: int) -> BuiltShard:
        shard = self.shards[at]
        with report_disk_errors(self.spec.root):
            files = self.transfer.build_and_store(
                self.spec,
                shard.number,
                lambda spec: _build_shard(self.source, spec, shard, self.existing),
            )
        return BuiltShard(shard.number, shard.stop - shard.start, files)


def _build_shard(
    source: CacheSource, spec: Spec, shard: ShardRange, existing: ExistingCopies | None = None
) -> Columns:
    """Build a shard of each resolution in existing folders. Return the columns of its record."""
    encoder, store = spec.encoder(), source.store
    keys, sizes, stamps, labels, names = [], [], [], [], []
    entries: dict[str, list[tuple[int, int, int, int]]] = {each.name: [] for each in spec.levels}
    skipped: list[tuple[int, str, str]] = []
    dtype, numbers = np.dtype(store.label_field.dtype), range(shard.start, shard.stop)
    with ExitStack() as opened:
        writers = [
            opened.enter_context(
                cache_format(spec.format).writer(spec.root, level, shard.number, source.classes)
            )
            for level in spec.levels
        ]
        reused = {
            number
            for number in numbers
            if existing and existing.has(store.key(number), store.stamp(number))
        }
        ahead = source.read_ahead(
            number
            for number in numbers
            if number not in spec.skipped_before and number not in reused
        )
        for number in numbers:
            name, stamp = store.key(number), store.stamp(number)
            if number in spec.skipped_before:
                skipped.append((number, name, spec.skipped_before[number]))
                continue
            read = partial(source.read, number) if number in reused else next(ahead)[1]
            try:
                copies = existing.get(name, stamp) if existing else None
                copies = copies or encoder.make_copies(read())
            except ImageError as error:
                if not spec.skip_broken:
                    # A finished cache cannot skip further images.
                    skippable = not (spec.adds_level or spec.repairs)
                    hint = error.hint or "repair or remove the file" * skippable
                    raise ImageError(
                        f"sample {number}, {name}, cannot be cached: {error.message}",
                        hint=hint + ", or skip broken images" * skippable,
                        fix={"on_error": "skip"} if skippable else {},
                    ) from error
                skipped.append((number, name, error.message))
                continue
            label = np.asarray(store.label(number), dtype)
            sample = CacheSample(number, name, label, copies.height, copies.width)
            for writer, image, rows in zip(writers, copies.images, entries.values(), strict=True):
                first = writer.write(sample, image)
                rows.append((shard.number, first, len(image), checksum(image, number, label)))
            keys.append(number)
            sizes.append((copies.height, copies.width))
            stamps.append(stamp)
            labels.append(label)
            names.append(encode_name(name))
        if existing:
            existing.release()
        shards = [writer.finish() for writer in writers]
    columns = {"keys": keys, "sizes": sizes, "stamps": stamps, "names": names, "shards": shards}
    shape = len(labels), *store.label_field.shape
    return _record({**columns, "labels": np.array(labels, dtype).reshape(shape)}, entries, skipped)


def _record(
    columns: Mapping[str, Any], entries: Mapping[str, Any], skipped: Sequence[tuple[int, str, str]]
) -> Columns:
    """Return the columns of a record; the encoded names are a list."""
    names = columns["names"]
    columns = {**columns, "name_ends": np.cumsum([len(name) for name in names])}
    return {
        **{
            name: np.array(columns[name], dtype).reshape(-1, *shape)
            for name, (dtype, shape) in COLUMNS.items()
        },
        **{
            f"level-{name}": np.array(rows, ENTRY[0]).reshape(-1, *ENTRY[1])
            for name, rows in entries.items()
        },
        "labels": columns["labels"],
        "names": np.frombuffer(b"".join(names), np.uint8),
        "shards": np.array(columns["shards"], np.int64),
        "skipped": np.frombuffer(json.dumps(skipped).encode(), np.uint8),
    }


class ExistingCopies:
    """Copies of a finished cache by the names of the images. Those of samples that are not
    `damaged` are reused; with None, those of unchanged stamps.
    """

    def __init__(self, index: CacheIndex, damaged: Collection[int] | None = None) -> None:
        self._damaged, self._index, manifest = damaged, index, index.manifest
        reader = cache_format(manifest.format).reader
        self._readers = [reader(index, level) for level in manifest.levels]
        self._rows = {index.name(row): row for row in range(manifest.samples)}

    def has(self, name: str, stamp: int) -> bool:
        """Return True if an image is unchanged and has copies."""
        row = self._rows.get(name)
        if row is not None and self._damaged is not None:
            return row not in self._damaged
        return row is not None and bool(stamp) and int(self._index.stamps[row]) == stamp

    def get(self, name: str, stamp: int) -> ResizedCopies | None:
        """Return an image's copies, if it is unchanged and they still exist."""
        if not self.has(name, stamp):
            return None
        row = self._rows[name]
        try:
            images = tuple(bytes(reader.file(row)) for reader in self._readers)
        except FeedlineError:  # replaced by another shard meanwhile
            return None
        height, width = self._index.sizes[row].tolist()
        return ResizedCopies(height, width, images)

    def release(self) -> None:
        """Close the copies, as Windows replaces no file that is mapped; `get` opens them again."""
        for reader in self._readers:
            reader.close()

    def close(self) -> None:
        """Close all files, also the index: no copies exist from now on."""
        self.release()
        self._readers.clear()
        self._rows.clear()
        del self._index


@dataclass(frozen=True)
class ShardTransfer:
    """Transfer of shards to the cache. Pickled, and sent to every process that builds shards.

    A process that sees the cache's folder builds there, and returns the record; on other machines
    it recognises the folder by the `token` in its lock. Another one builds in a temporary folder,
    and uploads the files to the `store` or returns them to the builder, the record last.
    """

    store: RemoteFolder | None = None
    token: str = ""

    def build_and_store(
        self, spec: Spec, shard: int, build: Callable[[Spec], Columns]
    ) -> ShardFiles:
        """Build a shard. Return the files that the builder must still store."""
        name = record_name(spec, shard)
        if self.store is None and (not self.token or sees_lock(spec.root, self.token)):
            make_level_folders(spec)
            return [(name, _encode_record(build(spec)))]
        with tempfile.TemporaryDirectory(prefix="feedline-") as folder:
            temporary = replace(spec, root=folder)
            make_level_folders(temporary)
            record = _encode_record(build(temporary))
            files = list_files(folder)
            if self.store is None:
                contents = ((file, np.fromfile(path, np.uint8)) for file, path in files)
                return [*contents, (name, record)]
            path = Path(folder, "record.npz")
            path.write_bytes(record)
            for file, source in [*files, (name, path)]:
                self.store.put(file, source)
            return [(name, record)]


def make_level_folders(spec: Spec) -> None:
    """Create the missing folders of the resolutions; raises a UsageError if one is a link."""
    for level in spec.levels:
        folder = os.path.join(spec.root, level.name)
        refuse_link(folder)
        os.makedirs(folder, exist_ok=True)


def list_files(root: str) -> list[tuple[str, Path]]:
    """List the files below a folder: relative names and paths."""
    paths = sorted(path for path in Path(root).rglob("*") if path.is_file())
    return [(path.relative_to(root).as_posix(), path) for path in paths]


def record_name(spec: Spec, shard: int) -> str:
    """Relative path of a shard's record, an .npz file with the columns of its samples."""
    return f"{spec.unfinished.name}/{shard:06d}.npz"


def read_record(spec: Spec, shard: int) -> dict[str, np.ndarray[Any, Any]]:
    """Read the record of a finished shard; OSError if it is missing, ValueError if damaged."""
    path = Path(spec.root, record_name(spec, shard))
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as record:
            return {name: record[name] for name in record.files}
    except OSError:
        raise
    except Exception as error:  # of zipfile, zlib or numpy's parser
        raise ValueError(f"the record {str(path)!r} is damaged: {error}") from error


def source_column(source: CacheSource, name: str, keys: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return a column of a record for some samples: "names", "name_ends", "stamps" or "labels"."""
    store, field = source.store, source.store.label_field
    if name == "labels":
        labels = np.array([store.label(key) for key in keys], field.dtype)
        return labels.reshape(-1, *field.shape)
    if name == "stamps":
        return np.array([store.stamp(key) for key in keys], COLUMNS[name][0])
    names = [encode_name(store.key(key)) for key in keys]
    if name == "names":
        return np.frombuffer(b"".join(names), np.uint8)
    return np.cumsum([len(each) for each in names], dtype=COLUMNS[name][0])


def encode_name(name: str) -> bytes:
    """Encode a sample's name for records and the index; invalid text is escaped."""
    return name.encode("utf-8", "backslashreplace")


def _encode_record(columns: Columns) -> bytes:
    whole = io.BytesIO()
    np.savez(whole, allow_pickle=False, **columns)
    return whole.getvalue()


def write_records(spec: Spec, manifest: Manifest) -> None:
    """Write the records of a finished cache's shards again, from its index."""
    index = CacheIndex(spec.root, manifest)
    entries = {level.name: index.entries(level) for level in manifest.levels}
    shards = index.keys // manifest.per_shard
    for shard in range(len(manifest.levels[0].shards)):
        rows = slice(*np.searchsorted(shards, [shard, shard + 1]).tolist())
        columns = {
            "labels": np.array(index.labels[rows]),
            "names": [index.name(row).encode() for row in range(rows.start, rows.stop)],
            "shards": [level.shards[shard] for level in manifest.levels],
        }
        columns |= {name: getattr(index, name)[rows] for name in ("keys", "sizes", "stamps")}
        skipped = [each for each in manifest.skipped if each[0] // manifest.per_shard == shard]
        record = _record(columns, {name: entry[rows] for name, entry in entries.items()}, skipped)
        write_atomic(Path(spec.root, record_name(spec, shard)), _encode_record(record))


def damaged_shards(index: CacheIndex) -> set[int]:
    """Return the shards of a cache with missing or truncated files."""
    find = cache_format(index.manifest.format).damaged_shards
    return set().union(*(find(index, level) for level in index.manifest.levels))


def shard_matches(source: CacheSource, spec: Spec, shard: ShardRange) -> bool:
    """Return True if a shard is finished, its images are unchanged and its files exist."""
    store = source.store
    try:
        record = read_record(spec, shard.number)
        for level, size in zip(spec.levels, record["shards"].tolist(), strict=True):
            if not cache_format(spec.format).has_shard(spec.root, level, shard.number, size):
                return False
        broken = {key: name for key, name, _ in json.loads(bytes(record["skipped"]))}
        numbers = range(shard.start, shard.stop)
        if not spec.skip_broken and set(broken) != set(spec.skipped_before).intersection(numbers):
            return False
        if spec.skip_broken and any(_is_readable(source, spec, key) for key in broken):
            return False  # e.g. the storage failed when it was read
        keys = record["keys"].tolist()
        if sorted([*keys, *broken]) != list(numbers):
            return False
        if any(encode_name(store.key(key)) != encode_name(name) for key, name in broken.items()):
            return False
        return all(
            np.array_equal(record[name], source_column(source, name, keys)) for name in _OF_SOURCE
        )
    except (OSError, ValueError, KeyError, TypeError, ImageError):
        return False


def _is_readable(source: CacheSource, spec: Spec, sample: int) -> bool:
    """Return True if copies of a sample can be made."""
    try:
        spec.encoder().make_copies(source.read(sample))
    except ImageError:
        return False
    return True
