"""Contents of a folder, from a scan with limits on entries, time and depth.

Guarantees: the scan takes about `seconds` for any folder, even with circular links; an incomplete
listing is reported as such. No file is opened.
"""

from __future__ import annotations

import os
import random
import stat
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import mean

from feedline.sources.folder import IMAGE_EXTENSIONS

__all__ = ["FolderContents", "FoundFile", "scan_folder"]

_MAX_ENTRIES = 200_000
_MAX_DEPTH = 12
_SAMPLE = 256
_CLOCK = 256  # entries between two checks of the time


@dataclass(frozen=True, kw_only=True)
class FoundFile:
    """File with its size in bytes."""

    path: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class FolderContents:
    """Contents of a folder.

    Args:
        files, images, folders: numbers seen below it.
        loose_images: number of images directly in it.
        class_folders: number of folders directly in it.
        complete: everything was seen.
        endings: number of files by extension, the most frequent first.
        sample: random files of those seen: images if there are any.
        mean_bytes: mean size of the sample; None without one.
        unreadable: number of folders that could not be listed.
    """

    files: int
    images: int
    folders: int
    loose_images: int
    class_folders: int
    complete: bool
    endings: dict[str, int]
    sample: tuple[FoundFile, ...]
    mean_bytes: float | None
    unreadable: int


@dataclass
class _Listing:
    """Entries of one folder."""

    folders: list[str] = field(default_factory=list)
    images: int = 0
    files: int = 0
    complete: bool = True


class _Reservoir:
    """Random sample of all added paths, uniform (reservoir sampling)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._seen = rng, 0
        self.paths: list[str] = []

    def add(self, path: str) -> None:
        self._seen += 1
        if len(self.paths) < _SAMPLE:
            self.paths.append(path)
        elif (place := self._rng.randrange(self._seen)) < _SAMPLE:
            self.paths[place] = path


class _Scan:
    """State of a scan: folders listed so far, and the deadline."""

    def __init__(self, root: str, seconds: float) -> None:
        self.root = root
        self.rng = random.Random(0)
        self.end = time.monotonic() + seconds
        self.entries = self.unreadable = 0
        self.endings: Counter[str] = Counter()
        self.images, self.others = _Reservoir(self.rng), _Reservoir(self.rng)
        self.listed: dict[str, _Listing] = {}

    @property
    def over(self) -> bool:
        return self.entries >= _MAX_ENTRIES or time.monotonic() > self.end

    def list(self, folder: str) -> _Listing:
        """Return the entries of a folder, listed once."""
        found = self.listed.get(folder)
        if found is None:
            found = self.listed[folder] = _Listing()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self._add(entry, found)
                        if self.entries % _CLOCK == 0 and self.over:
                            found.complete = False
                            break
            except OSError:
                if folder == self.root:
                    raise
                self.unreadable += 1
        return found

    def _add(self, entry: os.DirEntry[str], found: _Listing) -> None:
        self.entries += 1
        try:
            if entry.is_dir():
                if not (entry.is_symlink() and _leads_back(entry.path)):
                    found.folders.append(entry.path)
                return
        except OSError:  # an unreadable entry is not a folder
            return
        found.files += 1
        ending = os.path.splitext(entry.name)[1].lower()
        self.endings[ending] += 1
        if ending in IMAGE_EXTENSIONS:
            found.images += 1
            self.images.add(entry.path)
        else:
            self.others.add(entry.path)


def scan_folder(root: str, seconds: float) -> FolderContents:
    """Scan a folder.

    Args:
        root: an existing folder.
        seconds: approximate time limit; reading the sizes of a sample takes as long again.

    Raises:
        OSError: it cannot be listed.
    """
    scan = _Scan(root, seconds)
    complete = _walk(scan)
    seen = list(scan.listed.values())
    images, files = sum(each.images for each in seen), sum(each.files for each in seen)
    top = scan.listed[root]
    end = time.monotonic() + seconds
    sample = tuple(_add_sizes((scan.images if images else scan.others).paths, end))
    return FolderContents(
        files=files,
        images=images,
        folders=len(seen) - 1,
        loose_images=top.images,
        class_folders=len(top.folders),
        complete=complete and not scan.unreadable,
        endings=dict(scan.endings.most_common()),
        sample=sample,
        mean_bytes=mean(file.bytes for file in sample) if sample else None,
        unreadable=scan.unreadable,
    )


def _walk(scan: _Scan) -> bool:
    """List folders breadth-first, in random order; True if the listing is complete."""
    queue, complete = deque([(scan.root, 0)]), True
    while queue:
        folder, depth = queue.popleft()
        found = scan.list(folder)
        complete = complete and found.complete
        if depth < _MAX_DEPTH:
            scan.rng.shuffle(found.folders)
            queue.extend((inner, depth + 1) for inner in found.folders)
        elif found.folders:
            complete = False
        if scan.over:
            return complete and not queue
    return complete


def _add_sizes(paths: list[str], end: float) -> Iterator[FoundFile]:
    """Yield the regular files among paths with their sizes, until the deadline."""
    for path in paths:
        if time.monotonic() > end:
            return
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):  # reading a pipe or device may not end
            yield FoundFile(path=path, bytes=status.st_size)


def _leads_back(path: str) -> bool:
    """Return True if a link leads to a folder that contains it."""
    real, above = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
    return above == real or above.startswith(real.rstrip(os.sep) + os.sep)
