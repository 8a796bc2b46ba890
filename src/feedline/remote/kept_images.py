"""Whole remote images, kept in local sparse files.

    FOLDER/0/000012.part    the images 3072 to 3327, each in its own slot of 64 MiB

Guarantees: an image is returned as it was kept: its length and checksum precede it, and if they do
not match, it counts as not kept. Those of `local_copies`.

Relies on: a file system on which unwritten parts take no space. Few files contain many images, so
that their total size is computed quickly, whatever the number of images.
"""

from __future__ import annotations

import struct

import xxhash

from feedline.remote.disk_room import DiskRoom
from feedline.remote.joined_parts import Part
from feedline.remote.local_copies import LocalCopies

__all__ = ["KeptImages"]

_HEAD = struct.Struct("<QQ")
_IN_FILE = 256
_SLOT_BYTES = 64 << 20
_MOST_BYTES = _SLOT_BYTES - _HEAD.size


class KeptImages:
    """Kept copies of some images.

    Args:
        folder: folder for these images in this order.
        room: disk space.
    """

    def __init__(self, folder: str, room: DiskRoom) -> None:
        self._copies = LocalCopies(folder, room)

    def read(self, number: int, identity: str) -> bytes | None:
        """Read the bytes of an image; None if it is not kept.

        Args:
            number: number of the image.
            identity: differs for a different image.
        """
        name, first = _place(number)
        head = self._copies.read(Part(name, first, _HEAD.size))
        if head is None:
            return None
        length, checksum = _HEAD.unpack(head)
        if not 0 < length <= _MOST_BYTES:
            return None
        data = self._copies.read(Part(name, first + _HEAD.size, length))
        return data if data is not None and _checksum(data, identity) == checksum else None

    def keep(self, number: int, identity: str, data: bytes) -> None:
        """Keep an image, if there is space."""
        if not 0 < len(data) <= _MOST_BYTES:
            return
        head = _HEAD.pack(len(data), _checksum(data, identity))
        name, first = _place(number)
        self._copies.keep(Part(name, first, _HEAD.size + len(data)), head + data)

    def forget(self, number: int) -> None:
        """Remove an image."""
        name, first = _place(number)
        self._copies.forget(Part(name, first, _HEAD.size))


def _place(number: int) -> tuple[str, int]:
    file, slot = divmod(number, _IN_FILE)
    return f"0/{file:06}.part", slot * _SLOT_BYTES


def _checksum(data: bytes, identity: str) -> int:
    return xxhash.xxh3_64_intdigest(data, xxhash.xxh3_64_intdigest(identity.encode()))
