"""Names in an archive, as those of class folders with images.

Guarantees: a name that leads out of the archive raises an error, although nothing is extracted.
"""

from __future__ import annotations

import re
from collections import Counter

from feedline.errors import DatasetError
from feedline.sources.index import other_images

__all__ = ["FolderNames", "check_name"]

_ABSOLUTE = re.compile(r"/|[A-Za-z]:")
_APPLES = "__MACOSX"  # where macOS puts what belongs to files, under the files' own names


def check_name(called: str, name: str, holds: str) -> None:
    """Check that a name in an archive stays within it.

    Args:
        called: name of the archive in messages.
        name: name of a file or folder in it.
        holds: contents of the packed folder, e.g. "the classes".

    Raises:
        DatasetError: it is absolute or contains "..".
    """
    if _ABSOLUTE.match(name) or ".." in name.split("/") or "\\" in name or "\0" in name:
        raise DatasetError(
            f"{called} contains the name {name!r:.200}, which is absolute, or has '..', a "
            "backslash or a zero byte",
            hint=f"pack it again, from within the folder with {holds}",
        )


class FolderNames:
    """Selects the images in class folders by their names, and records the folders.

    Args:
        called: name of the archive in messages.
        inside: folder in it that contains the class folders; "" for the archive itself.
        endings: file extensions of images, in lower case.
    """

    def __init__(self, called: str, inside: str, endings: tuple[str, ...]) -> None:
        self._called = called
        self._inside = f"{inside}/" if inside else ""
        self._endings = endings
        self.left_out = Counter[str]()
        self.classes: set[str] = set()
        self.image = ""
        """An image outside of all class folders; "" for none."""

    def below(self, name: str) -> str:
        """Name of a file below the folder that contains the classes."""
        while name.startswith("./"):
            name = name[2:]
        return name[len(self._inside) :]

    def wanted(self, name: str) -> bool:
        """Return True for the name of an image in a class folder. Names of folders end with "/".

        Raises:
            DatasetError: it is absolute or contains "..".
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
