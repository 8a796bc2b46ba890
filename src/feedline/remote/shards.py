"""The images of a level whose tar shards lie on another machine.

Guarantees: those of `cache_level`; what a piece of work lacks is fetched with many requests at a
time; bytes that do not have their checksum are neither given nor kept.

Relies on: `parts` for the bytes, `local_copies` to keep them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedline.errors import ImageError
from feedline.remote.error import RemoteError
from feedline.remote.joined_parts import Part
from feedline.remote.local_copies import LocalCopies
from feedline.remote.parts import RemoteParts
from feedline.stores.cache_index import CacheIndex
from feedline.stores.cache_layout import Level, Manifest, shard_name
from feedline.stores.cache_level import Held, LevelReader

__all__ = ["RemoteShards"]

_MOST_BYTES = 1 << 30
_MOST_IN_HAND_BYTES = 256 << 20
_PATIENCE_S = 40.0
"""For a single image. With what was tried before and with the last try, it is shorter than the time
after which a loader takes a worker for hung."""


class RemoteShards(LevelReader):
    """Reads images of a level.

    Args:
        root: the folder of this machine that has the cache's index.
        manifest: what the cache holds.
        level: which of its levels.
        index: its columns.
        files: the cache's own, on the other machine.
        copies: what of them is on this one; None to keep nothing.
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
        self._files, self._copies = files, copies
        self._in_hand: dict[int, bytes] = {}

    def prepare(self, samples: Sequence[int]) -> None:
        """Have the bytes of these in hand. What cannot be had is told when it is read."""
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
        """Samples with their parts, each once, as many as there is memory for."""
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
        """A sample's bytes of this machine, if they are what was written."""
        data = None if self._copies is None else self._copies.read(part)
        return data if data is not None and self._is_sound(sample, data) else None

    def _keep(self, part: Part, data: bytes) -> None:
        if self._copies is not None:
            self._copies.keep(part, data)

    def path(self, sample: int) -> str:
        """The URL of the shard that holds an image."""
        return f"{self._files}/{self.level.name}/{shard_name(int(self._entries[sample, 0]))}"

    def _held(self, sample: int, shard: int, first: int, length: int) -> Held:
        in_hand = self._in_hand.pop(sample, None)
        if in_hand is not None:
            return in_hand
        if not self._lies_in(shard, first, length):
            raise ImageError(
                f"the index of {self._files} says that it lies where no shard is: at byte {first} "
                f"of shard {shard}, {length} bytes long. Build the cache there anew"
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
            raise ImageError(str(error)) from error
        self._keep(part, data)
        return data

    def close(self) -> None:
        """Let go of what was fetched ahead."""
        self._in_hand = {}
