"""Layout of a cache on disk: its manifest, and its index, columns of properties of each sample that
need no access to the images; folders that may become a cache.

    DIR/feedline-cache.json         the manifest: written last, so a cache without one is unfinished
    DIR/index/*.npy                 labels, original sizes, names; positions of the images
    DIR/256/000000.tar ...          a resolution in format "webdataset": tar shards
    DIR/256/data.mdb                a resolution in format "lmdb"
    DIR/256/CLASS/000000000-NAME.jpg  a resolution in format "folder"

A sample has a *key*, its number in the source. In tar shards and LMDB it has the entries
`KEY.jpg` (or `KEY.npy`, raw pixels), `KEY.cls` (the class index as text) and `KEY.json` (label,
class, original path, height, width), KEY being nine digits: the layout of the `webdataset` package.

Guarantees: reading a manifest runs no code of its writer, opens no other file and is bounded; an
invalid manifest, or one of a newer version, raises a DatasetError. Columns are memory-mapped and
shared by all processes, so a million samples cost no private memory; nothing is unpickled; a file
that does not match the manifest raises a DatasetError.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from feedline.errors import DatasetError, UsageError
from feedline.order.pixel_layout import MODES, PixelLayout
from feedline.sources.files import open_nonblocking
from feedline.sources.store import path_starts
from feedline.system import LONG_PATH_HINT, long_path_problem
from feedline.text import shell_command

MANIFEST = "feedline-cache.json"
INDEX = "index"
LOCK = ".lock"
"""File that a builder locks. It stays, because other processes may have opened it."""
UNFINISHED = "unfinished"
"""Folder with the progress of a build."""
AWAITED = "awaited"
"""File in it that waiting loaders touch, for a cache that is filled in the background."""

FILLED_FORMAT = "webdataset"
"""Format of such a cache."""

BUILD_FILES = rf"settings\.json|\d{{6}}\.npz|{AWAITED}"
"""Pattern of the names of the files in that folder."""
_OF_A_BUILD = re.compile(rf"\..*|(?:{BUILD_FILES})(?:\.\w+\.partial)?")

VERSION = 1
MAX_MANIFEST_BYTES = 256 << 20

# Types of the manifest's values, which `msgspec` checks.
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Side: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
_Quality: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=100)]
_DTYPES = r"\A(bool|uint8|int(8|16|32|64)|float(16|32|64)|complex(64|128))\Z"
_Dtype: TypeAlias = Annotated[str, msgspec.Meta(pattern=_DTYPES)]


@dataclass(frozen=True, kw_only=True)
class Level:
    """Copies of all images at one resolution."""

    side: _Side  # shorter side of the copies in pixels; a smaller image keeps its own size
    quality: _Quality | None  # of JPEG, 1 to 100; None: raw pixels
    shards: tuple[_Count, ...] = ()  # bytes of each tar file, or of all images of a shard

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
    """Contents of a cache."""

    format: str  # name of a `CacheFormat`
    samples: _Count
    levels: tuple[Level, ...]  # resolutions, smallest first
    classes: tuple[str, ...] | None  # class names by index; None without any
    label: tuple[_Dtype, tuple[_Count, ...]]  # dtype and shape of a label
    exif: bool  # images were rotated by their Exif orientation
    fingerprint: str  # hash of the names, their order and the labels
    source: tuple[str, str]
    """Kind and location: "folder", "files", "webdataset", "parquet" or "dataset"."""
    samples_in_source: _Count  # with skipped ones
    per_shard: _Count  # the last shard may have fewer
    skipped: tuple[tuple[int, str, str], ...] = ()  # number, name and reason of broken images
    digests: dict[str, str] = field(default_factory=dict)  # of the index's files, by name
    feedline: str = ""  # version that made it
    mode: str = "RGB"  # Pillow's mode of the copies, one of `pixel_layout.MODES`

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
    return f"feedline cache repair {shell_command(root)}"


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
    except (FileNotFoundError, NotADirectoryError):
        if _is_unfinished(root):
            raise DatasetError(
                f"the cache {root!r} is not finished: its build was interrupted or is running",
                hint="run the same `feedline cache build` again; it continues where it stopped",
            ) from None
        if not os.path.isdir(root):
            why = "it is a file" if os.path.exists(root) else "there is no such folder"
            if problem := long_path_problem(path):
                raise DatasetError(f"{root!r}: {problem}", hint=LONG_PATH_HINT) from None
            raise DatasetError(f"{root!r} is not a cache: {why}") from None
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
        manifest = msgspec.convert(fields, Manifest)
        sides = [level.side for level in manifest.levels]
        if not sides or sides != sorted(set(sides)):
            raise ValueError(f"invalid resolutions {sides}")
        if len({len(level.shards) for level in manifest.levels}) != 1:
            raise ValueError("the resolutions have different numbers of shards")
        if manifest.mode not in MODES:
            raise ValueError(f"invalid mode {manifest.mode!r}")
        known = Manifest.__dataclass_fields__ | Level.__dataclass_fields__
        if unknown := set(fields).union(*fields["levels"]) - known.keys():
            raise ValueError(f"unknown field {min(unknown)!r}")
        return manifest
    except DatasetError:
        raise
    except (
        msgspec.ValidationError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise DatasetError(
            f"{MANIFEST} in {root!r} is not a valid manifest of a cache: {type(error).__name__}: "
            f"{error}",
            hint="remove it, and build the cache again",
        ) from error


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


Array = np.ndarray[Any, Any]

COLUMNS = {
    "keys": ("int64", ()),
    "sizes": ("uint32", (2,)),
    "name_ends": ("int64", ()),
    "stamps": ("uint64", ()),
}
"""Dtype and row shape of each column besides labels, names and resolutions.

    keys        a sample's number in the source
    sizes       height and width of the original, in pixels
    name_ends   end of its name in `names`, UTF-8
    stamps      changes with its file
"""

NPY_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00.."
    rb"\{'descr': '([^']+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n",
    re.DOTALL,
)
"""Start of a .npy file, version 1.0: dtype and shape. Numpy writes 128 bytes."""

ENTRY = ("uint64", (4,))
"""Position of an image at a resolution: shard, first byte, number of bytes, checksum."""


def checksum(image: Any, key: int, label: Array) -> int:
    """Checksum of an image's stored bytes, with its sample and label: 64 bits, XXH3."""
    return xxhash.xxh3_64_intdigest(image, seed=checksum_seed(key, label.tobytes()))


def checksum_seed(key: int, label: bytes) -> int:
    """Seed of an image's checksum."""
    return xxhash.xxh3_64_intdigest(label, seed=key)


class CacheIndex:
    """Memory-mapped columns of a cache, by the folder that holds them and its manifest."""

    def __init__(self, root: str, manifest: Manifest) -> None:
        self.root, self.manifest = root, manifest
        samples = manifest.samples
        self.labels = load_column(root, "labels", samples, *manifest.label)
        self.keys = load_column(root, "keys", samples, *COLUMNS["keys"])
        self.sizes = load_column(root, "sizes", samples, *COLUMNS["sizes"])
        self.stamps = load_column(root, "stamps", samples, *COLUMNS["stamps"])
        self._name_ends = load_column(root, "name_ends", samples, *COLUMNS["name_ends"])
        total = int(self._name_ends[-1]) if samples else 0
        self._names = load_column(root, "names", total, "uint8", ())

    def check_sizes(self) -> None:
        """Check the originals' sizes, on which crops are drawn, against their digest.

        Each copy's checksum covers labels, keys and positions, and is checked at each read; of
        sizes only gross damage is detected there. For 1.3 million samples these are 10 MB and 3 ms.
        """
        path = os.path.join(self.root, INDEX, "sizes.npy")
        if digest_of(path) != self.manifest.digests.get("sizes"):
            raise DatasetError(
                f"the cache's index {path!r} is damaged or from another cache: its digest differs",
                hint=repair_command(self.root),
            )

    def entries(self, level: Level) -> Array:
        """Positions of a resolution's images."""
        return load_column(self.root, f"level-{level.name}", self.manifest.samples, *ENTRY)

    def name(self, sample: int) -> str:
        """Path or name of a sample in the source."""
        start = int(self._name_ends[sample - 1]) if sample else 0
        return bytes(self._names[start : int(self._name_ends[sample])]).decode("utf-8", "replace")

    def places(self, paths: bytes) -> Sequence[int | None]:
        """Indices of samples by UTF-8 names, each ended by a zero byte; None for unknown ones."""
        names, ends = self._names.tobytes(), self._name_ends
        # A folder that has not changed since is the usual case, and needs no look at single names.
        if paths.replace(b"\0", b"") == names:
            lengths = np.diff(path_starts(np.frombuffer(paths, np.uint8))) - 1
            if np.array_equal(np.cumsum(lengths), ends):
                return range(len(ends))
        edges = pairwise([0, *ends.tolist()])
        place = {names[start:end]: row for row, (start, end) in enumerate(edges)}
        return list(map(place.get, paths.split(b"\0")[:-1]))


def load_column(root: str, name: str, rows: int, dtype: str, shape: tuple[int, ...]) -> Array:
    """Map a column with this number of rows, read only."""
    path = os.path.join(root, INDEX, f"{name}.npy")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ValueError("it is not a file")
        with open(path, "rb", opener=open_nonblocking) as file:
            found, offset = _npy_header(file.read(1 << 16))
        if found != (np.dtype(dtype).str, (rows, *shape)):
            raise DatasetError(
                f"the cache's index {path!r} does not match its manifest: expected {dtype} of "
                f"shape {(rows, *shape)}, got {np.dtype(found[0])} of shape {found[1]}. It was "
                "copied incompletely, or is from another cache",
                hint=repair_command(root),
            )
        # numpy cannot map an array of nothing. A row of its memmap takes five times as long to get
        # as one of the plain array on the same memory.
        if not rows:
            return np.empty((0, *shape), dtype)
        return np.asarray(np.memmap(path, dtype, "r", offset, (rows, *shape)))
    except (OSError, ValueError, TypeError) as error:  # TypeError: numpy has no such dtype
        raise DatasetError(
            f"the cache's index {path!r} cannot be read: {error}", hint=repair_command(root)
        ) from error


def _npy_header(data: bytes) -> tuple[tuple[str, tuple[int, ...]], int]:
    """Dtype and shape of an array in a .npy file, and the position of its values.

    numpy parses the header as Python code, which in Python up to 3.11.7 and 3.12.1 can raise
    "AST constructor recursion depth mismatch" (python/cpython#106905), as if the file were damaged.
    """
    match = NPY_HEADER.match(data)
    if match is None:
        raise ValueError("it is not an array in numpy's format")
    dtype, shape = match[1].decode(), match[2].decode()
    return (dtype, tuple(int(side) for side in shape.split(",") if side.strip())), match.end()


def digest_of(path: str | os.PathLike[str]) -> str:
    """Digest of an index file, as in the manifest; raises OSError if it cannot be read."""
    digest = xxhash.xxh3_64()
    with open(path, "rb", opener=open_nonblocking) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def index_damage(root: str, manifest: Manifest) -> tuple[str, ...]:
    """Missing or changed files of a cache's index, with the reasons."""
    names = ("labels", "names", *COLUMNS, *(f"level-{level.name}" for level in manifest.levels))
    found = []
    for name in names:
        path = os.path.join(root, INDEX, f"{name}.npy")
        try:
            digest = digest_of(path)
        except OSError as error:
            found.append(f"{path}: {error.strerror or error}")
            continue
        if digest != manifest.digests.get(name):
            found.append(f"{path}: damaged, its digest differs")
    return tuple(found)
