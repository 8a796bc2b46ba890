"""Images of a resolution whose tar shards are remote.

Guarantees: those of `cache_level`; the images of a task are fetched with many requests at a time;
bytes with a wrong checksum are neither returned nor kept.

Relies on: `parts` for the bytes, `local_copies` to keep them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedline.errors import ImageError
from feedline.remote.error import RemoteError
from feedline.remote.joined_parts import Part
from feedline.remote.local_copies import LocalCopies
from feedline.remote.parts import RemoteParts
from feedline.sources.cache_index import CacheIndex
from feedline.sources.cache_layout import Level, Manifest, shard_name
from feedline.sources.cache_level import Held, LevelReader

__all__ = ["RemoteShards"]

_MOST_BYTES = 1 << 30
_MOST_IN_HAND_BYTES = 256 << 20
_PATIENCE_S = 40.0
"""Time for retries of a single image. With the first and the last try, it is shorter than the
time after which a loader considers a worker hung."""


class RemoteShards(LevelReader):
    """Reader of a resolution's images.

    Args:
        root: local folder with the cache's index.
        manifest: manifest of the cache.
        level: resolution.
        index: columns of the cache.
        files: remote files of the cache.
        copies: local copies; None to keep none.
    """

    def __init__(
        self,
        root: str,
        manifest: Manifest,
        level: Level,
        index: CacheIndex,
        files: RemoteParts,
        copies: LocalCopies | None,
    ) -> None:
        super().__init__(root, manifest, level, index)
        self._cache = str(files)
        self._files, self._copies = files, copies
        self._in_hand: dict[int, bytes] = {}

    def prepare(self, samples: Sequence[int]) -> None:
        """Prefetch the bytes of samples. Errors are raised when they are read."""
        self._in_hand = in_hand = {}
        missing = []
        for sample, part in self._some(samples):
            kept = self._kept(sample, part)
            if kept is None:
                missing.append((sample, part))
            else:
                in_hand[sample] = kept
        if not missing:
            return
        fetched = self._files.fetch([part for _, part in missing])
        for (sample, part), data in zip(missing, fetched, strict=True):
            if isinstance(data, bytes) and self._is_sound(sample, data):
                in_hand[sample] = data
                self._keep(part, data)

    def _some(self, samples: Sequence[int]) -> Iterator[tuple[int, Part]]:
        """Samples with their parts, without duplicates, as many as fit in memory."""
        most = _MOST_IN_HAND_BYTES
        for sample in dict.fromkeys(samples):
            if not 0 <= sample < len(self._entries):
                continue
            shard, first, length, _ = self._entries[sample].tolist()
            most -= length
            if most < 0:
                return
            if self._lies_in(shard, first, length):
                yield sample, self._part(shard, first, length)

    def _lies_in(self, shard: int, first: int, length: int) -> bool:
        shards = self.level.shards
        return shard < len(shards) and first + length <= shards[shard] and length <= _MOST_BYTES

    def _part(self, shard: int, first: int, length: int) -> Part:
        return Part(f"{self.level.name}/{shard_name(shard)}", first, length)

    def _is_sound(self, sample: int, data: bytes) -> bool:
        return self._checksum(sample, data) == int(self._entries[sample, 3])

    def _kept(self, sample: int, part: Part) -> bytes | None:
        """Local bytes of a sample, if they are intact."""
        data = None if self._copies is None else self._copies.read(part)
        return data if data is not None and self._is_sound(sample, data) else None

    def _keep(self, part: Part, data: bytes) -> None:
        if self._copies is not None:
            self._copies.keep(part, data)

    def path(self, sample: int) -> str:
        """URL of the shard that contains an image."""
        return f"{self._files}/{self.level.name}/{shard_name(int(self._entries[sample, 0]))}"

    def _held(self, sample: int, shard: int, first: int, length: int) -> Held:
        in_hand = self._in_hand.pop(sample, None)
        if in_hand is not None:
            return in_hand
        if not self._lies_in(shard, first, length):
            raise self._damaged(
                f"the index of {self._files} is damaged: it has the image at byte {first} of shard "
                f"{shard}, {length} bytes long, which does not exist"
            )
        part = self._part(shard, first, length)
        kept = self._kept(sample, part)
        if kept is not None:
            return kept
        try:
            data = self._files.read(
                part, patience_s=_PATIENCE_S, sound=lambda data: self._is_sound(sample, data)
            )
        except RemoteError as error:
            raise ImageError.of(error) from error
        self._keep(part, data)
        return data

    def close(self) -> None:
        """Drop prefetched images."""
        self._in_hand = {}
