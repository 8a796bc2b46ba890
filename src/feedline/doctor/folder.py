"""What a folder holds, by a look that is bounded: in entries, in time and in depth.

Guarantees: a folder of any size, with links in circles, takes about `seconds`; what was not
listed to the end says so. No file is opened.
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

from feedline.stores.index import IMAGE_EXTENSIONS

__all__ = ["Contents", "File", "look_into"]

_MOST_ENTRIES = 200_000
_MOST_DEPTH = 12
_SAMPLE = 256
_LEAST_WALKS, _MOST_WALKS = 8, 2000  # fewer give no estimate, more hardly a better one
_CLOCK = 256  # entries between two looks at the clock


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that was found, and its size in bytes."""

    path: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What was found in a folder.

    Args:
        files, images, folders: how many were seen below it.
        loose_images: images that lie directly in it.
        class_folders: the folders directly in it.
        complete: all was seen.
        estimated_files: what there may be in all, of the kind that `sample` is of; None where no
            estimate could be made.
        endings: how many files have which ending, the most frequent first.
        sample: some files, drawn at random from those seen: images if there are any.
        mean_bytes: the mean size of the sample; None without one.
        unreadable: folders that could not be listed.
    """

    files: int
    images: int
    folders: int
    loose_images: int
    class_folders: int
    complete: bool
    estimated_files: int | None
    endings: dict[str, int]
    sample: tuple[File, ...]
    mean_bytes: float | None
    unreadable: int


@dataclass
class _Listing:
    """A folder's own entries."""

    folders: list[str] = field(default_factory=list)
    images: int = 0
    files: int = 0
    complete: bool = True


class _Sample:
    """Some of all paths that are given to it, each as likely as any other (reservoir sampling)."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._seen = chance, 0
        self.paths: list[str] = []

    def add(self, path: str) -> None:
        self._seen += 1
        if len(self.paths) < _SAMPLE:
            self.paths.append(path)
        elif (place := self._chance.randrange(self._seen)) < _SAMPLE:
            self.paths[place] = path


class _Look:
    """One look into a folder: what was listed so far, and when it ends."""

    def __init__(self, root: str, seconds: float) -> None:
        self.root = root
        self.chance = random.Random(0)
        self.end = time.monotonic() + seconds
        self.entries = self.unreadable = 0
        self.endings: Counter[str] = Counter()
        self.images, self.others = _Sample(self.chance), _Sample(self.chance)
        self.listed: dict[str, _Listing] = {}

    @property
    def over(self) -> bool:
        return self.entries >= _MOST_ENTRIES or time.monotonic() > self.end

    def list(self, folder: str) -> _Listing:
        """A folder's own entries, listed once."""
        found = self.listed.get(folder)
        if found is None:
            found = self.listed[folder] = _Listing()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self._note(entry, found)
                        if self.entries % _CLOCK == 0 and self.over:
                            found.complete = False
                            break
            except OSError:
                if folder == self.root:
                    raise
                self.unreadable += 1
        return found

    def _note(self, entry: os.DirEntry[str], found: _Listing) -> None:
        self.entries += 1
        try:
            if entry.is_dir():
                if not (entry.is_symlink() and _leads_back(entry.path)):
                    found.folders.append(entry.path)
                return
        except OSError:  # what cannot be told is no folder
            return
        found.files += 1
        ending = os.path.splitext(entry.name)[1].lower()
        self.endings[ending] += 1
        if ending in IMAGE_EXTENSIONS:
            found.images += 1
            self.images.add(entry.path)
        else:
            self.others.add(entry.path)


def look_into(root: str, seconds: float) -> Contents:
    """Say what a folder holds.

    Args:
        root: an existing folder.
        seconds: how long it may take, about; as long again goes to an estimate of what is left.

    Raises:
        OSError: it cannot be listed.
    """
    look = _Look(root, seconds)
    complete = _walk(look)
    seen = list(look.listed.values())
    images, files = sum(each.images for each in seen), sum(each.files for each in seen)
    top = look.listed[root]
    total: int | None = images or files
    if not complete:
        look.end, look.entries = time.monotonic() + seconds, 0
        total = _estimate(look, images=images > 0)
    end = time.monotonic() + seconds
    sample = tuple(_sized((look.images if images else look.others).paths, end))
    return Contents(
        files=files,
        images=images,
        folders=len(seen) - 1,
        loose_images=top.images,
        class_folders=len(top.folders),
        complete=complete and not look.unreadable,
        estimated_files=total,
        endings=dict(look.endings.most_common()),
        sample=sample,
        mean_bytes=mean(file.bytes for file in sample) if sample else None,
        unreadable=look.unreadable,
    )


def _walk(look: _Look) -> bool:
    """List folder after folder, those of one depth in any order; True if nothing was left."""
    queue, complete = deque([(look.root, 0)]), True
    while queue:
        folder, depth = queue.popleft()
        found = look.list(folder)
        complete = complete and found.complete
        if depth < _MOST_DEPTH:
            look.chance.shuffle(found.folders)
            queue.extend((inner, depth + 1) for inner in found.folders)
        elif found.folders:
            complete = False
        if look.over:
            return complete and not queue
    return complete


def _estimate(look: _Look, *, images: bool) -> int | None:
    """How many files there may be in all, from random walks down; None where that cannot be told.

    Each walk takes one of the folders at each depth, and counts what it meets times the number of
    folders it might have taken: on average that is what there is (Knuth, Estimating the
    efficiency of backtrack programs, 1975).
    """
    if not look.listed[look.root].complete:
        return None
    look.listed = {path: found for path, found in look.listed.items() if found.complete}
    totals: list[float] = []
    while len(totals) < _MOST_WALKS and not look.over:
        folder, weight, total = look.root, 1, 0.0
        for _ in range(_MOST_DEPTH):
            found = look.list(folder)
            if not found.complete:
                return None
            total += weight * (found.images if images else found.files)
            if not found.folders:
                break
            weight *= len(found.folders)
            folder = look.chance.choice(found.folders)
        else:
            return None  # it goes deeper than anyone looks
        totals.append(total)
    return round(mean(totals)) if len(totals) >= _LEAST_WALKS else None


def _sized(paths: list[str], end: float) -> Iterator[File]:
    """The files among paths, with their sizes, as many as are told in time."""
    for path in paths:
        if time.monotonic() > end:
            return
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):  # no pipe and no device, which would not end
            yield File(path=path, bytes=status.st_size)


def _leads_back(path: str) -> bool:
    """Whether a link leads to a folder that it lies in."""
    real, above = os.path.realpath(path), os.path.realpath(os.path.dirname(path))
    return above == real or above.startswith(real.rstrip(os.sep) + os.sep)
