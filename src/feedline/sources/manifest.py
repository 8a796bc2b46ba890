"""Layout of a cache on disk: the names of its files, its manifest, and folders that may become one.

    DIR/feedline-cache.json         the manifest: written last, so a cache without one is unfinished
    DIR/index/*.npy                 labels, original sizes, names; positions of the images
    DIR/256/000000.tar ...          a resolution in format "webdataset": tar shards
    DIR/256/data.mdb                a resolution in format "lmdb"
    DIR/256/CLASS/000000000-NAME.jpg  a resolution in format "folder"

A sample has a *key*, its number in the source. In tar shards and LMDB it has the entries
`KEY.jpg` (or `KEY.npy`, raw pixels), `KEY.cls` (the class index as text) and `KEY.json` (label,
class, original path, height, width), KEY being nine digits: the layout of the `webdataset` package.

Guarantees: reading a manifest runs no code of its writer, opens no other file and is bounded; an
invalid manifest, or one of a newer version, raises a DatasetError.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import DatasetError, UsageError
from feedline.order.pixel_layout import MODES, PixelLayout
from feedline.sources.files import open_nonblocking

__all__ = [
    "AWAITED",
    "INDEX",
    "LOCK",
    "MANIFEST",
    "MAX_MANIFEST_BYTES",
    "UNFINISHED",
    "Level",
    "Manifest",
    "check_place",
    "is_cache",
    "is_finished",
    "level_size",
    "level_sizes",
    "member",
    "parse_manifest",
    "read_manifest",
    "repair_command",
    "shard_name",
]

MANIFEST = "feedline-cache.json"
INDEX = "index"
LOCK = ".lock"
"""File that a builder locks. It stays, because other processes may have opened it."""
UNFINISHED = "unfinished"
"""Folder with the progress of a build."""
AWAITED = "awaited"
"""File in it that waiting loaders touch, for a cache that is filled in the background."""

_OF_A_BUILD = re.compile(rf"\..*|(?:settings\.json|\d{{6}}\.npz)(?:\.\w+\.partial)?|{AWAITED}")
"""Contents of that folder."""

VERSION = 1
MAX_MANIFEST_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Level:
    """Copies of all images at one resolution.

    Args:
        side: shorter side of the copies in pixels; a smaller image keeps its own size.
        quality: JPEG quality, 1 to 100; None: raw pixels.
        shards: sizes in bytes of the tar files, or of all the images' bytes.
    """

    side: int
    quality: int | None
    shards: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of its folder."""
        return str(self.side)

    @property
    def ending(self) -> str:
        """File extension of its images."""
        return "npy" if self.quality is None else "jpg"

    @property
    def bytes(self) -> int:
        """Disk space, in bytes."""
        return sum(self.shards)

    def __str__(self) -> str:
        return f"{self.side} px " + ("raw" if self.quality is None else f"JPEG q{self.quality}")

    @classmethod
    def of(cls, text: str) -> Level:
        """Parse the text of `str`; raises a ValueError."""
        if not (found := re.fullmatch(r"(\d{1,4}) px (?:raw|JPEG q(\d{1,3}))", text)):
            raise ValueError(f"{text!r} is not a resolution of a cache")
        return cls(side=int(found[1]), quality=None if found[2] is None else int(found[2]))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of a cache.

    Args:
        format: name of a `CacheFormat`.
        samples: number of samples.
        levels: resolutions, smallest first.
        classes: class names by index; None without any.
        label: dtype and shape of a label.
        exif: images were rotated by their Exif orientation.
        fingerprint: hash of the names, their order and the labels.
        source: kind and location of the source: "folder", "files", "webdataset", "parquet" or
            "dataset".
        samples_in_source: number of samples, including skipped ones.
        per_shard: samples per shard; the last shard may have fewer.
        skipped: broken images that were skipped: their number, name, and the reason.
        digests: digests of the index's files, by name.
        feedline: version that made it.
        mode: Pillow's mode of the copies, one of `pixel_layout.MODES`.
    """

    format: str
    samples: int
    levels: tuple[Level, ...]
    classes: tuple[str, ...] | None
    label: tuple[str, tuple[int, ...]]
    exif: bool
    fingerprint: str
    source: tuple[str, str]
    samples_in_source: int
    per_shard: int
    skipped: tuple[tuple[int, str, str], ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    feedline: str = ""
    mode: str = "RGB"

    @property
    def layout(self) -> PixelLayout:
        """Channels and dtype of the copies."""
        return MODES[self.mode]

    def extends(self, other: Manifest) -> bool:
        """Return True if this is the other manifest, possibly with additional resolutions."""
        return (
            replace(self, levels=other.levels, digests=other.digests) == other
            and set(other.levels) <= set(self.levels)
            and other.digests.items() <= self.digests.items()
        )

    def as_text(self) -> str:
        """Text of the file: JSON."""
        return json.dumps({"feedline_cache": VERSION, **asdict(self)}, indent=1) + "\n"


def level_sizes(originals: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    """`level_size` of several images, int64 (n, 2)."""
    short = np.maximum(originals.min(axis=1, keepdims=True), 1)
    copies = np.maximum(np.rint(originals * side / short), 1.0).astype(np.int64)
    return np.where(short <= side, originals, copies)


def repair_command(root: str) -> str:
    """Command that rebuilds the damaged files of a cache, a folder or a URL, as a hint."""
    return f"feedline cache repair {shlex.quote(root)}"


def is_cache(root: str) -> bool:
    """Return True if a folder is a cache, finished or not."""
    return is_finished(root) or _is_unfinished(root)


def is_finished(root: str) -> bool:
    """Return True if a folder is a finished cache."""
    return os.path.exists(os.path.join(root, MANIFEST))


def _is_unfinished(root: str) -> bool:
    """Return True if a build was started in a folder; a class may be named "unfinished", too."""
    try:
        with os.scandir(os.path.join(root, UNFINISHED)) as entries:
            return all(_OF_A_BUILD.fullmatch(entry.name) for entry in entries)
    except OSError:
        return False


def read_manifest(root: str) -> Manifest:
    """Read the manifest of a cache; a DatasetError if it is missing, unfinished or invalid."""
    path = os.path.join(root, MANIFEST)
    try:
        with open(path, "rb", opener=open_nonblocking) as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        if _is_unfinished(root):
            raise DatasetError(
                f"the cache {root!r} is not finished: its build was interrupted or is running",
                hint="run the same `feedline cache build` again; it continues where it stopped",
            ) from None
        if not os.path.isdir(root):
            raise DatasetError(f"{root!r} is not a cache: there is no such folder") from None
        raise DatasetError(f"{root!r} is not a cache: it has no {MANIFEST}") from None
    except OSError as error:
        raise DatasetError(f"{path!r} cannot be read: {error.strerror or error}") from error
    return parse_manifest(data, root)


def parse_manifest(data: bytes, root: str) -> Manifest:
    """Parse a manifest file, or its beginning if it is longer than a manifest may be."""
    try:
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it is larger than {MAX_MANIFEST_BYTES} bytes")
        fields = json.loads(data)
        version = fields.pop("feedline_cache")
        if isinstance(version, int) and version > VERSION:
            raise DatasetError(
                f"the cache {root!r} was made by a newer feedline, {fields.get('feedline')!r} "
                f"(version {version} of the format; this one reads {VERSION})",
                hint="upgrade feedline, or build the cache again",
            )
        return _manifest_of(fields)
    except DatasetError:
        raise
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise DatasetError(
            f"{MANIFEST} in {root!r} is not a valid manifest of a cache: {type(error).__name__}: "
            f"{error}",
            hint="remove it, and build the cache again",
        ) from error


def _manifest_of(fields: dict[str, Any]) -> Manifest:
    """Manifest from parsed JSON; raises ValueError, KeyError or TypeError if it is invalid."""
    levels = []
    for values in fields.pop("levels"):
        level = Level(**{**values, "shards": tuple(values["shards"])})
        quality_ok = level.quality is None or (_is_count(level.quality) and level.quality <= 100)
        if not (_is_count(level.side, 1) and quality_ok and all(map(_is_count, level.shards))):
            raise ValueError(f"invalid resolution {values!r}")
        levels.append(level)
    dtype, shape = fields.pop("label")
    classes = fields.pop("classes")
    manifest = Manifest(
        levels=tuple(levels),
        classes=None if classes is None else tuple(classes),
        label=(dtype, tuple(shape)),
        source=tuple(fields.pop("source")),
        skipped=tuple((int(key), str(name), str(why)) for key, name, why in fields.pop("skipped")),
        **fields,
    )
    sides = [level.side for level in levels]
    if not levels or sides != sorted(set(sides)):
        raise ValueError(f"invalid resolutions {sides}")
    if len({len(level.shards) for level in levels}) != 1:
        raise ValueError("the resolutions have different numbers of shards")
    if manifest.mode not in MODES:
        raise ValueError(f"invalid mode {manifest.mode!r}")
    counts = manifest.samples, manifest.samples_in_source, manifest.per_shard
    if not all(map(_is_count, counts)):
        raise ValueError(f"invalid numbers of samples {counts!r}")
    texts = [manifest.format, dtype, manifest.fingerprint, *manifest.source, *(classes or ())]
    texts += manifest.digests.values()
    if not all(isinstance(text, str) for text in texts) or len(manifest.source) != 2:
        raise ValueError("expected text")
    if not (
        re.fullmatch(r"bool|uint8|int(8|16|32|64)|float(16|32|64)|complex(64|128)", dtype)
        and all(map(_is_count, shape))
    ):
        raise ValueError(f"invalid labels {dtype!r}, {shape!r}")
    return manifest


def _is_count(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def check_place(root: str, source: str | None) -> None:
    """Raise a UsageError if a folder, which need not exist, cannot become the cache of the source
    at a path: it contains something else, or lies in the source.
    """
    if source is not None:
        inner, outer = (os.path.join(os.path.realpath(each), "") for each in (root, source))
        if inner.startswith(outer):
            raise UsageError(
                f"the cache {root!r} would lie inside its source {source!r} and become part of it; "
                "use a folder elsewhere"
            )
    if os.path.exists(root) and not os.path.isdir(root):
        raise UsageError(f"the cache folder {root!r} is an existing file; use another path")
    # A build that was refused or stopped before it did anything leaves its lock.
    if os.path.isdir(root) and set(os.listdir(root)) - {LOCK} and not is_cache(root):
        raise UsageError(
            f"{root!r} is not empty and not a feedline cache; name a cache, or a folder that does "
            "not exist"
        )


def member(key: int) -> str:
    """Name of a sample in tar shards and LMDB, without an extension."""
    return f"{key:09d}"


def shard_name(shard: int) -> str:
    """File name of a tar shard."""
    return f"{shard:06d}.tar"


def level_size(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width of the copy of an image of (height, width) pixels at a resolution."""
    short = min(height, width)
    if short <= side:
        return height, width
    return max(1, round(height * side / short)), max(1, round(width * side / short))
