"""Layout of a cache on disk: the names of its files, and the manifest.

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
from typing import Any, Literal, TypeAlias, get_args

from feedline.errors import DatasetError
from feedline.order.pixel_layout import MODES, PixelLayout
from feedline.sources.read_file import without_waiting

__all__ = [
    "AWAITED",
    "INDEX",
    "LMDB_FILE",
    "LOCK",
    "MANIFEST",
    "MOST_MANIFEST_BYTES",
    "UNFINISHED",
    "CacheFormat",
    "Level",
    "Manifest",
    "is_cache",
    "is_finished",
    "level_size",
    "member",
    "parse_manifest",
    "read_manifest",
    "repair_command",
    "shard_name",
]

MANIFEST = "feedline-cache.json"
INDEX = "index"
LMDB_FILE = "data.mdb"
LOCK = ".lock"
"""File that a builder locks. It stays, because other processes may have opened it."""
UNFINISHED = "unfinished"
"""Folder with the progress of a build."""
AWAITED = "awaited"
"""File in it that waiting loaders touch, for a cache that is filled in the background."""

_OF_A_BUILD = re.compile(rf"\..*|(?:settings\.json|\d{{6}}\.npz)(?:\.\w+\.partial)?|{AWAITED}")
"""Contents of that folder."""

VERSION = 1
MOST_MANIFEST_BYTES = 256 << 20

CacheFormat: TypeAlias = Literal["webdataset", "lmdb", "folder"]


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
        """Parse the text of `str`.

        Raises:
            ValueError: invalid text.
        """
        if not (found := re.fullmatch(r"(\d{1,4}) px (?:raw|JPEG q(\d{1,3}))", text)):
            raise ValueError(f"{text!r} is not a resolution of a cache")
        return cls(side=int(found[1]), quality=None if found[2] is None else int(found[2]))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Contents of a cache.

    Args:
        format: storage format of the images.
        samples: number of samples.
        levels: resolutions, smallest first.
        classes: class names by index; None if there are none.
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

    format: CacheFormat
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


def repair_command(root: str) -> str:
    """Command that rebuilds the damaged files of a cache, as a hint.

    Args:
        root: folder or URL of the cache.
    """
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
    """Read the manifest of a cache.

    Raises:
        DatasetError: it is missing, unfinished, damaged or of a newer version.
    """
    path = os.path.join(root, MANIFEST)
    try:
        with open(path, "rb", opener=without_waiting) as file:
            data = file.read(MOST_MANIFEST_BYTES + 1)
    except FileNotFoundError:
        if _is_unfinished(root):
            raise DatasetError(
                f"the cache {root!r} is not finished: its build was interrupted or is running",
                hint="run the same `feedline cache build` again; it continues where it stopped",
            ) from None
        raise DatasetError(f"{root!r} is not a cache: it has no {MANIFEST}") from None
    except OSError as error:
        raise DatasetError(f"{path!r} cannot be read: {error.strerror or error}") from error
    return parse_manifest(data, root)


def parse_manifest(data: bytes, root: str) -> Manifest:
    """Parse a manifest file; raises like `read_manifest`.

    Args:
        data: the file; if it is longer than a manifest may be, its beginning.
        root: location of the cache, for messages.
    """
    try:
        if len(data) > MOST_MANIFEST_BYTES:
            raise ValueError(f"it is larger than {MOST_MANIFEST_BYTES} bytes")
        given = json.loads(data)
        version = given.pop("feedline_cache")
        if isinstance(version, int) and version > VERSION:
            raise DatasetError(
                f"the cache {root!r} was made by a newer feedline, {given.get('feedline')!r} "
                f"(version {version} of the format; this one reads {VERSION})",
                hint="upgrade feedline, or build the cache again",
            )
        return _checked(given)
    except DatasetError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise DatasetError(
            f"{MANIFEST} in {root!r} is not a valid manifest of a cache: {type(error).__name__}: "
            f"{error}",
            hint="remove it, and build the cache again",
        ) from error


def _checked(given: dict[str, Any]) -> Manifest:
    """Manifest from parsed JSON; raises ValueError, KeyError or TypeError if it is invalid."""
    levels = []
    for level in given.pop("levels"):
        made = Level(**{**level, "shards": tuple(level["shards"])})
        quality_ok = made.quality is None or (_is_count(made.quality) and made.quality <= 100)
        if not (_is_count(made.side, 1) and quality_ok and all(map(_is_count, made.shards))):
            raise ValueError(f"invalid resolution {level!r}")
        levels.append(made)
    dtype, shape = given.pop("label")
    classes = given.pop("classes")
    made_of = Manifest(
        levels=tuple(levels),
        classes=None if classes is None else tuple(classes),
        label=(dtype, tuple(shape)),
        source=tuple(given.pop("source")),
        skipped=tuple((int(key), str(name), str(why)) for key, name, why in given.pop("skipped")),
        **given,
    )
    sides = [level.side for level in levels]
    digests = made_of.digests
    texts = (dtype, made_of.fingerprint, *made_of.source, *(classes or ()), *digests.values())
    if not levels or sides != sorted(set(sides)):
        raise ValueError(f"invalid resolutions {sides}")
    if len({len(level.shards) for level in levels}) != 1:
        raise ValueError("the resolutions have different numbers of shards")
    if made_of.mode not in MODES:
        raise ValueError(f"invalid mode {made_of.mode!r}")
    counts = made_of.samples, made_of.samples_in_source, made_of.per_shard
    if made_of.format not in get_args(CacheFormat) or not all(map(_is_count, counts)):
        raise ValueError(f"invalid format {made_of.format!r} or samples {counts!r}")
    if not all(isinstance(text, str) for text in texts) or len(made_of.source) != 2:
        raise ValueError("expected text")
    if not (
        re.fullmatch(r"bool|uint8|int(8|16|32|64)|float(16|32|64)|complex(64|128)", dtype)
        and all(map(_is_count, shape))
    ):
        raise ValueError(f"invalid labels {dtype!r}, {shape!r}")
    return made_of


def _is_count(value: object, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


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
