"""The passes of a run, in a number of entries that stays bounded.

Guarantees: each pass has an entry for each image size that it had, up to 32; where entries become
too many, old ones of the same loader and size are summed up, so that no step is lost. An entry of a
pass that goes on stays as it is.
"""

from __future__ import annotations

from feedline.trace.histogram import Histogram
from feedline.trace.run import Pass

__all__ = ["Passes", "Sizes", "bounded"]

_MOST = 200
_MOST_SIZES = 32


class Passes:
    """Entries, in the order in which they came."""

    def __init__(self) -> None:
        self.entries: list[Pass] = []
        self._going: list[Pass] = []

    def enter(self, entry: Pass) -> None:
        """Another entry, of a pass that goes on."""
        self.entries.append(entry)
        self._going.append(entry)
        if len(self.entries) > _MOST:
            self.entries = _summed_up(self.entries, self._going)

    def over(self, entries: list[Pass]) -> None:
        """A pass is over that had these."""
        self._going = [each for each in self._going if not any(each is over for over in entries)]


class Sizes:
    """The entries of one pass, by image size.

    Args:
        passes: where they are entered.
        first: the entry it begins with, of a size that its first batch shows.
    """

    def __init__(self, passes: Passes, first: Pass) -> None:
        self._passes = passes
        self._by_size: dict[int | None, Pass] = {}
        self.now = first
        passes.enter(first)

    def change(self, size: int | None) -> Pass:
        """The entry for a batch of a size that is not the one before's, or is the first."""
        now = self.now
        if not self._by_size:
            now.image_size = size
            self._by_size[size] = now
            return now
        if len(self._by_size) >= _MOST_SIZES and size not in self._by_size:
            size = None  # one entry for all that is beyond
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
        """The pass is over."""
        self.now.ended = how
        self._passes.over([self.now, *self._by_size.values()])


def bounded(passes: list[Pass]) -> list[Pass]:
    """Entries of passes that are over, old ones summed up if they are too many."""
    while len(passes) > _MOST:
        passes = _summed_up(passes, [])
    return passes


def _summed_up(passes: list[Pass], going: list[Pass]) -> list[Pass]:
    """Let old entries of the same loader and size be one, or, where that is not enough, any two."""
    old, recent = passes[: len(passes) // 2], passes[len(passes) // 2 :]
    stay = [each for each in old if any(each is one for one in going)]
    kept: dict[tuple[int, int | None], Pass] = {}
    for each in old:
        if any(each is one for one in stay):
            continue
        known = kept.setdefault((each.loader, each.image_size), each)
        if known is not each:
            _join(known, each)
    joined = list(kept.values())
    while len(joined) > _MOST // 4:
        first, second = joined[-2:]
        _join(first, second)
        joined.pop()
    return [*joined, *stay, *recent]


def _join(into: Pass, other: Pass) -> None:
    into.passes += other.passes
    if into.image_size != other.image_size:
        into.image_size = None
    into.ended_s, into.ended = other.ended_s, other.ended
    into.batches += other.batches
    into.batch_size = max(into.batch_size or 0, other.batch_size or 0) or None
    both = into.samples is not None and other.samples is not None
    into.samples = (into.samples or 0) + (other.samples or 0) if both else None
    into.bytes += other.bytes
    into.float_bytes += other.float_bytes
    into.start_ms += other.start_ms
    into.wait += other.wait
    into.compute += other.compute
    for name in ("wait_cpu_ms", "compute_cpu_ms", "tasks", "tasks_ms", "disk_bytes"):
        own, more = getattr(into, name), getattr(other, name)
        if more is not None:
            setattr(into, name, more if own is None else own + more)
    if other.copy is not None:
        into.copy = into.copy or Histogram()
        into.copy += other.copy
