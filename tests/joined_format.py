"""A made-up format of caches: the copies of a shard in one file, without anything between them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from feedline.sources.cache_format_base import (
    CacheFormat,
    CacheSample,
    CopyBytes,
    LevelReader,
    ShardWriter,
    register_cache_format,
)
from feedline.sources.files import partial_path, read_part, sync_names
from feedline.sources.manifest import CacheIndex, Level, Manifest


class JoinedWriter(ShardWriter):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._path = Path(self.root, self.level.name, f"{self.shard}.joined")
        self._partial = partial_path(self._path)
        self._file = self._partial.open("wb")

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, sample: CacheSample, image: bytes) -> int:
        first = self._file.tell()
        self._file.write(image)
        return first

    def finish(self) -> int:
        size = self._file.tell()
        self._file.close()
        os.replace(self._partial, self._path)
        sync_names(self.root, [self._path])
        return size


class JoinedReader(LevelReader):
    def path(self, sample: int) -> str:
        return os.path.join(self._folder, f"{self._entries[sample, 0]}.joined")

    def _bytes(self, sample: int, shard: int, first: int, length: int) -> CopyBytes:
        return read_part(self.path(sample), first, length)


class JoinedFormat(CacheFormat):
    name = "joined"
    file_names = r"\d+\.joined"
    reader = JoinedReader
    writer = JoinedWriter

    def file_damage(self, root: str, level: Level) -> dict[int, tuple[str, str]]:
        paths = [Path(root, level.name, f"{shard}.joined") for shard in range(len(level.shards))]
        return {
            shard: (str(path), "another size")
            for shard, (path, size) in enumerate(zip(paths, level.shards, strict=True))
            if not path.exists() or path.stat().st_size != size
        }

    def remove_stale(self, root: str, manifest: Manifest, level: Level, index: CacheIndex) -> None:
        for path in Path(root, level.name).iterdir():
            if int(path.stem) >= len(level.shards):
                path.unlink()


register_cache_format(JoinedFormat())
