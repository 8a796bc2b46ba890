"""Passes of a run, in a bounded number of entries.

Guarantees: each pass has an entry for each of its image sizes, up to 32; if there are too many
entries, old ones of the same loader and size are summed up, so that no step is lost. Entries of
unfinished passes are never merged.
"""

from __future__ import annotations

from feedline.timing.run import Pass

__all__ = ["PassEntries", "Passes", "limit_passes"]

_MAX_ENTRIES = 200
_MAX_SIZES = 32


class Passes:
    """Entries, in order."""

    def __init__(self) -> None:
        self.entries: list[Pass] = []
        self._unfinished: list[Pass] = []

    def enter(self, entry: Pass) -> None:
        """Add an entry of an unfinished pass."""
        self.entries.append(entry)
        self._unfinished.append(entry)
        if len(self.entries) > _MAX_ENTRIES:
            self.entries = _summed_up(self.entries, self._unfinished)

    def finish(self, entries: list[Pass]) -> None:
        """Mark the entries of a pass as finished."""
        self._unfinished = [e for e in self._unfinished if not any(e is each for each in entries)]


class PassEntries:
    """Entries of one pass, by image size.

    Args:
        passes: collects all entries.
        first: the first entry; its size is that of the first batch.
    """

    def __init__(self, passes: Passes, first: Pass) -> None:
        self._passes = passes
        self._by_size: dict[int | None, Pass] = {}
        self.now = first
        passes.enter(first)

    def change(self, size: int | None) -> Pass:
        """Return the entry for a batch of a new size, or for the first batch."""
        now = self.now
        if not self._by_size:
            now.image_size = size
            self._by_size[size] = now
            return now
        if len(self._by_size) >= _MAX_SIZES and size not in self._by_size:
            size = None  # one entry for all further sizes
        known = self._by_size.get(size)
        if known is now:
            return now
        now.ended = "size changed"
        if known is None:
            known = Pass(
                loader=now.loader,
                epoch=now.epoch,
                passes=0,
                image_size=size,
                begun_s=now.ended_s,
                ended_s=now.ended_s,
                device_clock=now.device_clock,
            )
            self._by_size[size] = known
            self._passes.enter(known)
        known.ended = ""
        self.now = known
        return known

    def end(self, how: str) -> None:
        """End the pass."""
        self.now.ended = how
        self._passes.finish([self.now, *self._by_size.values()])


def limit_passes(passes: list[Pass]) -> list[Pass]:
    """Limit the number of entries of finished passes, by summing up old ones."""
    while len(passes) > _MAX_ENTRIES:
        passes = _summed_up(passes, [])
    return passes


def _summed_up(passes: list[Pass], unfinished: list[Pass]) -> list[Pass]:
    """Merge old entries of the same loader and size, or, if that is not enough, any two."""
    old, recent = passes[: len(passes) // 2], passes[len(passes) // 2 :]
    stay = [each for each in old if any(each is one for one in unfinished)]
    kept: dict[tuple[int, int | None], Pass] = {}
    for each in old:
        if any(each is one for one in stay):
            continue
        known = kept.setdefault((each.loader, each.image_size), each)
        if known is not each:
            known.add(each)
    joined = list(kept.values())
    while len(joined) > _MAX_ENTRIES // 4:
        first, second = joined[-2:]
        first.add(second)
        joined.pop()
    return [*joined, *stay, *recent]
