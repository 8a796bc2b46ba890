"""Images in WebDataset tar shards: names of shards, their samples, labels and the store.

Guarantees: the samples of the webdataset package, in the order of the shards; nothing is extracted;
a shard that is missing, truncated, or damaged in its headers raises an error and is never a smaller
shard; a change of a local shard since its scan is noticed. A label is returned as written; a
missing one is described. Only headers and labels are read; a local shard is scanned once, its index
is saved, and used while the shard is unchanged. A pickle carries no descriptor; several threads may
read at once.

Relies on: braceexpand and `glob` for names, as webdataset; `archives` for the tar format.
"""

from __future__ import annotations

import functools
import glob
import itertools
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from feedline.errors import DatasetError, ImageError, UsageError
from feedline.sources.archives import (
    TarMember,
    check_name,
    has_names,
    indexed_file,
    lies_within,
    tar_members,
)
from feedline.sources.column_types import Labels, convert_labels, convert_texts
from feedline.sources.files import OpenFiles, check_size
from feedline.sources.remote_files import LocalFolder, RemoteFolder
from feedline.sources.remote_filesystem import FOLDER_PATIENCE_S, RangeError, RemoteError
from feedline.sources.remote_reader import Range, RemoteReader
from feedline.sources.store import (
    IndexedStore,
    Numbers,
    PathTable,
    common_folder,
    first_names,
    make_stamp,
    path_starts,
    printable,
)
from feedline.system import slashed

LabelPlace: TypeAlias = "tuple[str, tuple[str, ...]]"
"""Extension of a file, and the names that lead to a value in it; none for its whole text."""

_VERSION = 2
_MAX_LABEL_BYTES = 1 << 20
# As webdataset tells a key from the extension: at the first dot of the last part of the name.
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_ABOUT_THE_SHARD = re.compile(r"__[^/]*__($|/)")
_IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff")
_LABELS: tuple[LabelPlace, ...] = (("cls", ()), ("json", ("label",)), ("json", ("cls",)))


def expand_shards(shards: Any) -> list[str]:
    """Absolute paths of shards, in their order. Braces expand to several, e.g. "{000000..000099}"
    and "{a,b}"; wildcards, e.g. "*.tar", to the existing files, sorted.
    """
    is_one = isinstance(shards, (str, bytes, os.PathLike)) or not isinstance(shards, Iterable)
    paths: list[str] = []
    for pattern in [shards] if is_one else shards:
        if not isinstance(pattern, (str, os.PathLike)):
            raise UsageError(
                f"must be a path, or a list of paths, got {pattern!r:.200}", argument="shards"
            )
        paths += _expand(os.fspath(pattern))
    if not paths:
        raise DatasetError("the list of shards is empty")
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        hint = ""
        if os.path.isdir(missing[0]):
            hint = f"for all shards in a folder use {os.path.join(missing[0], '*.tar')!r}"
        raise DatasetError(
            f"{len(missing)} of {len(paths)} shards are missing or not files: "
            f"{first_names(missing)}",
            hint=hint,
        )
    return paths


def _expand(pattern: str) -> list[str]:
    """Paths of a pattern with braces and wildcards."""
    if "://" in pattern or pattern.startswith("pipe:"):
        raise UsageError(
            f"shards must be local, but {pattern!r} is remote",
            hint="download them, or make smaller copies of the images with feedline.build_cache, "
            "which reads shards at URLs",
        )
    pattern = os.path.abspath(os.path.expanduser(pattern))
    if os.path.exists(pattern):
        return [pattern]
    paths = []
    for name in _expand_braces(pattern):
        if glob.has_magic(name) and not os.path.exists(name):
            matches = sorted(glob.glob(name))
            if not matches:
                raise DatasetError(f"no files match {name!r}")
            paths += matches
        else:
            paths.append(name)
    return paths


def _expand_braces(pattern: str) -> list[str]:
    import braceexpand

    try:
        return list(braceexpand.braceexpand(pattern))
    except ValueError as error:  # UnbalancedBracesError
        raise UsageError(
            f"unmatched brace in {pattern!r}: {error}",
            hint=r"write a brace that is part of the name as '\{' or '\}'",
        ) from error


class WebDatasetStore(IndexedStore):
    """Images of shards in a folder; a `SampleStore`.

    `paths` has the name of each image's shard, and its own in it. `entries` is int64 (n, 3): shard,
    first byte and length of each image; `status` int64 (shards, 2): size and version of each shard.
    """

    def __init__(
        self,
        folder: LocalFolder | RemoteFolder,
        shards: Sequence[str],
        paths: PathTable,
        entries: Numbers,
        status: Numbers,
    ) -> None:
        super().__init__(paths)
        self.is_remote = folder.is_remote
        self._folder, self._shards = folder, shards
        self._entries, self._status = entries, status
        self._files = OpenFiles("shard", "ImageList")
        self._reader = None
        if isinstance(folder, RemoteFolder):
            self._reader = RemoteReader([folder.url], folder.options)

    @property
    def folder(self) -> str:
        """Path or URL of the folder with the shards."""
        return self._folder.path("")

    def close(self) -> None:
        self._files.close()
        if self._reader is not None:
            self._reader.close()

    def read(self, sample: int, side: int) -> bytes:
        shard, first, length = self._entries[sample].tolist()
        check_size(length)
        name = self._shards[shard]
        if self._reader is not None and isinstance(self._folder, RemoteFolder):
            part = Range(f"{self._folder.url}/{name}", first, length)
            try:
                return self._reader.read(part, patience_s=FOLDER_PATIENCE_S) if length else b""
            except RemoteError as error:
                if error.is_missing_file and not isinstance(error.__cause__, RangeError):
                    raise ImageError.of(error) from error
                raise
        size, changed_ns = self._status[shard].tolist()
        return self._files.read(self._folder.path(name), (size, changed_ns), first, length)

    def name(self, sample: int) -> str:
        """Path of a sample's shard, and the name of its image in it."""
        folder = printable(os.fsencode(self.folder)).decode()
        return folder + "/" * self.is_remote + self.paths.path(sample)

    def key(self, sample: int) -> str:
        """Name of a shard and of a key in it; the name of a sample, if it is of a dataset."""
        if self.kind != "webdataset":
            return self.name(sample)
        return _split(self.paths.path(sample))[0]

    def stamp(self, sample: int) -> int:
        """Stamp of the shard's size and version, and of the image's position."""
        shard, first, length = self._entries[sample].tolist()
        return make_stamp(*self._status[shard].tolist(), first, length)

    def local_path(self, sample: int) -> str:
        shard = self._shards[int(self._entries[sample, 0])]
        return "" if self.is_remote else self._folder.path(shard)

    def __repr__(self) -> str:
        return f"tar shards in {self.folder!r}"


def webdataset_samples(
    shards: Any, image: Any, label: Any, incomplete: str, classes: Any
) -> tuple[WebDatasetStore, Labels, list[tuple[str, str]]]:
    """Samples of shards, their labels, and the names of incomplete samples with the reasons;
    arguments and errors are those of `ImageList.from_webdataset`.
    """
    if incomplete not in ("raise", "skip"):
        raise UsageError(f'must be "raise" or "skip", got {incomplete!r}', argument="incomplete")
    places = () if label is None else _label_places(label)
    paths = expand_shards(shards)
    images = _extensions(image)
    folder = common_folder(paths)
    names = [slashed(path[len(folder) :]) for path in paths]
    requested = f"image={image!r}, label={label!r}"
    return _open_shards(
        LocalFolder(folder), names, images, places, requested, classes, incomplete=incomplete
    )


def webdataset_source(
    folder: LocalFolder | RemoteFolder, shards: Sequence[str]
) -> tuple[WebDatasetStore, list[str] | None]:
    """Samples of shards with usual extensions, and the names of their classes, if labels are texts:
    an image, and a label in a .cls or a .json. A cache names them by their keys.
    """
    requested = f'image="{";".join(_IMAGES)}", label="cls;json:label;json:cls"'
    store, labels, _ = _open_shards(folder, shards, _IMAGES, _LABELS, requested)
    store.kind = "webdataset"
    return store, labels.classes or None


def _open_shards(
    folder: LocalFolder | RemoteFolder,
    shards: Sequence[str],
    image: tuple[str, ...],
    label: tuple[LabelPlace, ...],
    requested: str,
    classes: Any = None,
    *,
    incomplete: str = "",
) -> tuple[WebDatasetStore, Labels, list[tuple[str, str]]]:
    """Samples of shards, their labels, and the names of incomplete samples with the reasons."""
    status: list[tuple[int, int]] = []
    blobs: list[bytes] = []
    entries: list[Numbers] = []
    written: list[Any] = []  # labels; 0 if none are requested
    skipped: list[tuple[str, str]] = []
    results = folder.map(functools.partial(_index_shard, folder, image, label), shards)
    for number, (name, (state, columns, values)) in enumerate(zip(shards, results, strict=True)):
        status.append(state)
        prefix = os.fsencode(name) + b"/"
        if names := columns["names"].tobytes():
            blobs.append(prefix + names[:-1].replace(b"\0", b"\0" + prefix) + b"\0")
        shard = np.full((len(columns["places"]), 1), number, np.int64)
        entries.append(np.concatenate([shard, columns["places"]], axis=1))
        written += values["labels"]
        skipped += [(f"{folder.path(name)}/{key}", why) for key, why in values["left_out"]]
    if skipped and (incomplete != "skip" or not written):
        name, why = skipped[0]
        raise DatasetError(
            f"{len(skipped)} of {len(written) + len(skipped)} samples are incomplete, "
            f"the first {name!r}: {why}. Requested: {requested}",
            fix={"incomplete": "skip"} if incomplete and written else {},
        )
    blob = np.frombuffer(b"".join(blobs), np.uint8)
    places = np.concatenate(entries)
    paths = PathTable(blob, path_starts(blob), places)

    def describe(sample: int) -> str:
        return f"sample {sample}, {paths.path(sample)!r},"

    where = f"the dataset in {folder.path('')!r}"
    texts = convert_texts(where, written, classes, describe)
    labels = convert_labels(texts, len(paths), classes, describe)
    paths = replace(paths, labels=labels.values)
    states = np.array(status, np.int64)
    return WebDatasetStore(folder, shards, paths, places, states), labels, skipped


def _extensions(image: Any) -> tuple[str, ...]:
    """File extensions, in order of preference: "jpg;png"."""
    parts = image.lower().split(";") if isinstance(image, str) else ()
    endings = tuple(part.strip().removeprefix(".") for part in parts)
    if not endings or not all(endings) or any(":" in ending for ending in endings):
        raise UsageError(
            f'must be file extensions, e.g. "jpg;jpeg;png", got {image!r:.200}', argument="image"
        )
    return endings


def _label_places(label: Any) -> tuple[LabelPlace, ...]:
    """Possible positions of a label, in order of preference: "cls;json:label"."""
    places: list[LabelPlace] = []
    for part in label.split(";") if isinstance(label, str) else ():
        ending, colon, names = part.strip().partition(":")
        ending, fields = ending.lower().removeprefix("."), tuple(names.split(".")) if colon else ()
        if not ending or not all(fields):
            places = []
            break
        if ending == "json" and not fields:
            raise UsageError(
                f"{label!r:.200} would make a class of each whole JSON text",
                argument="label",
                hint='name the field with the label, e.g. "json:label" or "json:about.label"',
            )
        places.append((ending, fields))
    if not places:
        raise UsageError(
            'must be the extension of a text file, e.g. "cls" or "txt", a field of a JSON file, '
            'e.g. "json:label" or "json:about.label", or several of these separated by ";", got '
            f"{label!r:.200}",
            argument="label",
        )
    return tuple(places)


def _index_shard(
    folder: LocalFolder | RemoteFolder,
    image: tuple[str, ...],
    label: tuple[LabelPlace, ...],
    shard: str,
) -> tuple[tuple[int, int], Mapping[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """State of a shard, and its index: columns, and JSON-able values."""
    path = folder.path(shard)
    if isinstance(folder, RemoteFolder):
        status = folder.status(shard)
        with folder.open_file(shard) as file:
            return status, *_scan_shard(file, status.size, path, image, label)
    return indexed_file(
        path,
        f"the shard {path!r}",
        json.dumps(["webdataset", _VERSION, image, label]),
        lambda file, size: _scan_shard(file, size, path, image, label),
        _is_valid,
    )


def _is_valid(columns: Mapping[str, Any], values: Mapping[str, Any], size: int) -> bool:
    """Return True if a saved index may be that of a shard with this size in bytes."""
    names, places = columns["names"], columns["places"]
    labels, skipped = values["labels"], values["left_out"]
    if not isinstance(labels, list) or not isinstance(skipped, list):
        return False
    if not all(isinstance(key, str) and isinstance(why, str) for key, why in skipped):
        return False
    if places.dtype != np.int64 or places.shape != (len(labels), 2):
        return False
    first, length = places.T
    in_order = bool(lies_within(first, length, size).all() and (np.diff(first) > length[:-1]).all())
    return in_order and has_names(names, len(labels))


def _scan_shard(
    file: BinaryIO, size: int, path: str, image: tuple[str, ...], label: tuple[LabelPlace, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    names, places = bytearray(), array("q")
    labels: list[Any] = []
    skipped_samples: list[list[str]] = []
    for key, files in _shard_samples(file, path, size):
        check_name(f"the shard {path!r}", key, "the samples")
        member = next((files[ending] for ending in image if ending in files), None)
        if member is None:
            present = ", ".join(f".{ending}" for ending in files)
            skipped_samples.append([key, f"it has no image: there is only {present}"])
            continue
        value, why = _label_at(label, file, files)
        if why:
            skipped_samples.append([key, why])
            continue
        names += os.fsencode(member.name) + b"\0"
        places.extend((member.first, member.length))
        labels.append(value)
    if not labels and not skipped_samples:
        raise DatasetError(
            f"the shard {path!r} contains no samples; its writer may have been interrupted",
            hint="remove it, or write it again",
        )
    columns = {
        "names": np.frombuffer(bytes(names), np.uint8),
        "places": np.array(places, np.int64).reshape(-1, 2),
    }
    return columns, {"labels": labels, "left_out": skipped_samples}


def _shard_samples(
    file: BinaryIO, path: str, size: int
) -> Iterator[tuple[str, dict[str, TarMember]]]:
    """Yield key and files by extension of each sample of an open shard, in its order."""

    def selects(name: str) -> bool:
        return _NAME.fullmatch(name) is not None and not _ABOUT_THE_SHARD.match(name)

    seen: set[str] = set()
    members = tar_members(file, size, f"the shard {path!r}", selects)
    files = (member for member in members if not member.is_link)
    for key, group in itertools.groupby(files, lambda member: _split(member.name)[0]):
        if key in seen:
            raise DatasetError(
                f"the shard {path!r} has the key {key!r} twice, with other keys between: the files "
                "of a sample must be consecutive, and keys unique"
            )
        seen.add(key)
        sample: dict[str, TarMember] = {}
        for member in group:
            ending = _split(member.name)[1]
            if ending in sample:
                raise DatasetError(f"the shard {path!r} has {f'{key}.{ending}'!r} twice")
            sample[ending] = member
        yield key, sample


def _split(name: str) -> tuple[str, str]:
    """Key and extension, in lower case, of a file of a sample."""
    match = _NAME.fullmatch(name)
    return (match[1], match[2].lower()) if match else (name, "")


def _label_at(
    places: Sequence[LabelPlace], file: BinaryIO, files: Mapping[str, TarMember]
) -> tuple[Any, str]:
    """Label of a sample, a text or a value of JSON; and why it is missing, or ""."""
    if not places:
        return 0, ""
    problem = ""
    for ending, fields in places:
        if ending not in files:
            continue
        file.seek(files[ending].first)
        data = file.read(min(files[ending].length, _MAX_LABEL_BYTES))
        try:
            value: Any = data.decode().strip()
            if fields:
                value = json.loads(value)
                for name in fields:
                    if not isinstance(value, dict) or name not in value:
                        raise LookupError(_no_field(name, value))
                    value = value[name]
        except LookupError as error:
            problem = f"its .{ending} has none: {error.args[0]}"
            continue
        except (ValueError, RecursionError) as error:
            problem = f"its .{ending} cannot be read ({type(error).__name__}: {error})"
            continue
        if value not in ("", None):
            return value, ""
        problem = f"that in its .{ending} is empty"
    present = ", ".join(f".{ending}" for ending in files)
    return None, f"it has no label: {problem or f'there is only {present}'}"


def _no_field(name: str, value: Any) -> str:
    """Describe a missing field of a value of JSON."""
    if not isinstance(value, dict):
        return f"cannot look up {name!r} in {value!r:.99}, which has no fields"
    there = ", ".join(map(repr, list(value)[:10])) or "none"
    return f"there is no field {name!r}; there are: {there}"
