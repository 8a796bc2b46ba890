"""Where the files of a unit go that was made, in this process or on another machine.

Guarantees: a unit's record gets its place when all its other files have theirs, also after a power
cut; a unit that is broken off
leaves no scratch folder behind, unless its process is killed.

Relies on: the builder, who puts the files that it is handed in their places, in their order.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from feedline.cache.records import Columns, as_record, record_name, write_record
from feedline.cache.settings import Spec
from feedline.remote.folder import RemoteFolder
from feedline.stores.cache_lock import sees_lock

__all__ = [
    "Delivery",
    "Files",
    "InPlace",
    "ToBuilder",
    "ToStore",
    "files_in",
    "make_level_folders",
]

Files: TypeAlias = "list[tuple[str, bytes | np.ndarray[Any, Any]]]"
"""Names below the cache's folder, and what the files hold, the record last."""

Make: TypeAlias = Callable[[Spec], Columns]
"""Makes a unit's files in the folder of a spec, and gives what its record holds."""


class Delivery(Protocol):
    """Pickled, and sent to whoever makes units."""

    def deliver(self, spec: Spec, unit: int, make: Make) -> Files:
        """Make a unit; what the builder has still to put in its place."""
        ...


@dataclass(frozen=True)
class InPlace:
    """Has a unit made in the cache's folder itself."""

    def deliver(self, spec: Spec, unit: int, make: Make) -> Files:
        """Make a unit and its record."""
        write_record(spec, unit, make(spec))
        return []


@dataclass(frozen=True)
class ToBuilder:
    """Has a unit made in the cache's folder where this machine sees it; else hands its files over.

    Args:
        token: what the builder has written into its lock.
    """

    token: str

    def deliver(self, spec: Spec, unit: int, make: Make) -> Files:
        """Make a unit; its record is handed over in any case."""
        files: Files = []
        if sees_lock(spec.root, self.token):
            make_level_folders(spec)
            record = make(spec)
        else:
            with scratch(spec) as there:
                record = make(there)
                files = [(name, np.fromfile(path, np.uint8)) for name, path in files_in(there.root)]
        return [*files, (record_name(spec, unit), as_record(record))]


@dataclass(frozen=True)
class ToStore:
    """Has a unit made in a scratch folder, and uploads its files.

    Args:
        there: the cache's folder in the store.
    """

    there: RemoteFolder

    def deliver(self, spec: Spec, unit: int, make: Make) -> Files:
        """Make a unit; its record is uploaded last, and handed over, too."""
        with scratch(spec) as here:
            record = as_record(make(here))
            for name, path in files_in(here.root):
                self.there.put(name, path)
            file = Path(here.root, "record.npz")
            file.write_bytes(record)
            self.there.put(record_name(spec, unit), file)
        return [(record_name(spec, unit), record)]


@contextlib.contextmanager
def scratch(spec: Spec) -> Iterator[Spec]:
    """A temporary folder of this machine to make a unit in: the spec with it."""
    with tempfile.TemporaryDirectory(prefix="feedline-") as folder:
        there = replace(spec, root=folder)
        make_level_folders(there)
        yield there


def make_level_folders(spec: Spec) -> None:
    """Make the folders of the levels, where they are missing."""
    for level in spec.levels:
        os.makedirs(os.path.join(spec.root, level.name), exist_ok=True)


def files_in(root: str) -> list[tuple[str, Path]]:
    """The files in a folder and below it: their names there, and their paths."""
    found = sorted(path for path in Path(root).rglob("*") if path.is_file())
    return [(path.relative_to(root).as_posix(), path) for path in found]
