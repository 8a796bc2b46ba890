"""What a build leaves behind of an earlier one that had more images, or other names for them.

Guarantees: after `remove_stale` a level holds the images of its cache and no others.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from feedline.cache.lmdb_writer import close_whole
from feedline.stores.cache_index import CacheIndex
from feedline.stores.cache_layout import LMDB_FILE, Level, Manifest, member, shard_name
from feedline.stores.file_name import file_name

__all__ = ["remove_stale"]


def remove_stale(root: str, manifest: Manifest, sides: Collection[int]) -> None:
    """Remove from the folders of some levels, by their sides, what the manifest does not know."""
    index = CacheIndex(root, manifest)
    for level in manifest.levels:
        if level.side not in sides:
            continue
        folder = Path(root, level.name)
        if manifest.format == "lmdb":
            _remove_files(folder, [LMDB_FILE])
            _remove_entries(folder, {member(key) for key in index.keys.tolist()})
        elif manifest.format == "webdataset":
            _remove_files(folder, map(shard_name, range(len(level.shards))))
        else:
            _remove_files(folder, _files(index, manifest, level))


def _files(index: CacheIndex, manifest: Manifest, level: Level) -> Iterable[str]:
    for row, key in enumerate(index.keys.tolist()):
        name = file_name(key, index.name(row), index.labels[row], manifest.classes)
        yield f"{name}.{level.ending}"


def _remove_files(folder: Path, wanted: Iterable[str]) -> None:
    known = set(wanted)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in known:
            path.unlink()
    for path in folder.iterdir():
        if path.is_dir() and not os.listdir(path):
            path.rmdir()


def _remove_entries(folder: Path, wanted: set[str]) -> None:
    import lmdb

    # Room for the pages that deleting writes anew.
    room = 2 * (folder / LMDB_FILE).stat().st_size + (64 << 20)
    environment = lmdb.open(str(folder), map_size=room)
    with environment.begin(write=True) as transaction:
        stale = [
            name
            for name, _ in transaction.cursor()
            if bytes(name).decode("ascii", "replace").partition(".")[0] not in wanted
        ]
        for name in stale:
            transaction.delete(name)
    close_whole(environment, folder)
