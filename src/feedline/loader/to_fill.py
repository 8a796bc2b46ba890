"""Contents of a cache to be filled for one loader.

Guarantees: depends on the loader's arguments and dataset alone. Parts of one folder, e.g. from
`random_split`, fill one cache with the whole folder; a file listed twice is copied once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from feedline.errors import UsageError
from feedline.loader.checks import own_source
from feedline.loader.settings import Settings
from feedline.recognition.folders import Chosen, folders_of
from feedline.recognition.replacements import Replacements
from feedline.recognition.samples import class_names, root_of, store_of
from feedline.remote.image_files import RemoteImages
from feedline.stores.cache_place import check_place
from feedline.stores.file_store import FileStore
from feedline.stores.index import FolderIndex

__all__ = ["ToFill", "to_fill"]

_STEP = 64
"""Resolutions are multiples of this many pixels: 128, 192 and 256 for rows of 112, 160 and 224,
because a crop of a slightly larger copy is closer to the original's. A few sizes serve many."""


@dataclass(frozen=True, eq=False)
class ToFill:
    """Contents of a cache.

    Args:
        root: folder of the cache.
        where: folder of the originals.
        kind: "folder", or "files" if they are only some of the files in it.
        files: originals.
        classes: class names by number; None if unknown.
        sides: shorter sides of the resolutions in pixels, smallest first.
        exif: images are rotated by their Exif orientation.
    """

    root: str
    where: str
    kind: str
    files: FileStore[Any]
    classes: list[str] | None
    sides: tuple[int, ...]
    exif: bool


def to_fill(settings: Settings, source: Any) -> ToFill:
    """Contents for the cache of a loader.

    Args:
        settings: settings of the loader, with a cache.
        source: a `RowPipeline` of the originals.

    Raises:
        UsageError: the images are not files, or the folder cannot be their cache.
    """
    asked = settings.asked
    assert asked.cache is not None
    whole = own_source(settings.dataset)
    files = (source if whole is None else whole).originals()  # all, where a Subset chooses some
    if isinstance(files, RemoteImages):
        raise UsageError(
            f"{asked.cache!r} is not a cache, and a cache of images at URLs cannot be filled while "
            "training: build it first with feedline.build_cache(dataset, ...), or remove cache=, "
            "because fetched files are kept on this machine in any case"
        )
    if whole is not None:
        where, classes = whole.root, list(whole.classes) or None
        kind = "folder" if isinstance(files.paths, FolderIndex) else "files"
    else:
        folders = folders_of(settings.dataset, Replacements()).folders
        if len(folders) > 1 or folders[0] is not settings.dataset:
            files = store_of(Chosen(folders, None))
        root = root_of(folders)
        where = root or os.fsdecode(files.folders[0])
        kind = "files" if root is None else "folder"
        classes = class_names(folders)
    where = os.path.abspath(where)
    sizes = [phase.image_size or source.image_size for phase in asked.phases.phases]
    sizes += [] if asked.max_image_size is None else [asked.max_image_size]
    wanted = {source.wanted_side(size) for size in sizes}
    check_place(asked.cache, where if kind == "folder" else None)
    return ToFill(
        root=asked.cache,
        where=where,
        kind=kind,
        files=files.without_repeats(),
        classes=classes,
        sides=tuple(sorted({-(-side // _STEP) * _STEP for side in wanted})),
        exif=source.exif,
    )
