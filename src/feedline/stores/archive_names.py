"""The names in an archive, as those of class folders with images in them.

Guarantees: a name that leads out of the archive is an error, though nothing is extracted.
"""

from __future__ import annotations

import re
from collections import Counter

from feedline.errors import DatasetError
from feedline.stores.index import other_images

__all__ = ["FolderNames", "check_name"]

_ABSOLUTE = re.compile(r"/|[A-Za-z]:")
_APPLES = "__MACOSX"  # where macOS puts what belongs to files, under the files' own names


def check_name(called: str, name: str, holds: str) -> None:
    """See whether a name in an archive stays in it.

    Args:
        called: what to call the archive in a message.
        name: of a file or folder in it.
        holds: what the folder that was packed holds, e.g. "the classes".

    Raises:
        DatasetError: it is absolute or climbs.
    """
    if _ABSOLUTE.match(name) or ".." in name.split("/") or "\\" in name or "\0" in name:
        raise DatasetError(
            f"{called} holds the name {name!r:.200}, which is absolute, climbs with '..' or has a "
            f"backslash or a zero byte: pack it anew, from within the folder that holds {holds}"
        )


class FolderNames:
    """Tells which names are images in class folders, and notes the folders.

    Args:
        called: what to call the archive in a message.
        inside: the folder in it that holds the class folders; "" for the archive itself.
        endings: how the names of images end, in lower case.
    """

    def __init__(self, called: str, inside: str, endings: tuple[str, ...]) -> None:
        self._called = called
        self._inside = f"{inside}/" if inside else ""
        self._endings = endings
        self.left_out = Counter[str]()
        self.classes: set[str] = set()
        self.image = ""
        """An image that lies in no class folder; "" for none."""

    def below(self, name: str) -> str:
        """The name of a file below the folder that holds the classes."""
        while name.startswith("./"):
            name = name[2:]
        return name[len(self._inside) :]

    def wanted(self, name: str) -> bool:
        """Whether a name is that of an image in a class folder. That of a folder ends with "/".

        Raises:
            DatasetError: it is absolute or climbs.
        """
        check_name(self._called, name, "the classes")
        while name.startswith("./"):
            name = name[2:]
        if not name.startswith(self._inside) or name.startswith(f"{_APPLES}/"):
            return False
        kind, slash, own = name[len(self._inside) :].partition("/")
        is_image = name.lower().endswith(self._endings)
        if slash and kind:
            self.classes.add(kind)
            self.left_out.update(other_images([own], self._endings))
            return is_image and bool(own)
        if is_image:
            self.image = self.image or kind
        return False
