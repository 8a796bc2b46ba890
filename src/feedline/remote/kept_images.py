"""Images of another machine, whole, kept in sparse files on this one.

    FOLDER/0/000012.part    the images 3072 to 3327, each in a slot of 64 MiB of its own

Guarantees: what is given is what was kept for this image: its length and checksum stand before it,
and whatever differs is as if nothing were kept. Those of `local_copies`.

Relies on: a file system on which what was never written takes no room. Few files hold many images,
so that what is kept is added up soon, whatever the number of images.
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
    """What is kept of some images.

    Args:
        folder: where, for these images in this order alone.
        room: how much may be kept.
    """

    def __init__(self, folder: str, room: DiskRoom) -> None:
        self._copies = LocalCopies(folder, room)

    def read(self, number: int, identity: str) -> bytes | None:
        """The bytes of an image; None where they are not here.

        Args:
            number: of the image.
            identity: another one where another image is wanted.
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
        """Keep an image, if there is room for it."""
        if not 0 < len(data) <= _MOST_BYTES:
            return
        head = _HEAD.pack(len(data), _checksum(data, identity))
        name, first = _place(number)
        self._copies.keep(Part(name, first, _HEAD.size + len(data)), head + data)

    def forget(self, number: int) -> None:
        """Keep an image no longer."""
        name, first = _place(number)
        self._copies.forget(Part(name, first, _HEAD.size))


def _place(number: int) -> tuple[str, int]:
    file, slot = divmod(number, _IN_FILE)
    return f"0/{file:06}.part", slot * _SLOT_BYTES


def _checksum(data: bytes, identity: str) -> int:
    return xxhash.xxh3_64_intdigest(data, xxhash.xxh3_64_intdigest(identity.encode()))
