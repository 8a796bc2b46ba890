"""The passes of a run, in a number of entries that stays bounded.

Guarantees: each pass has an entry for each image size that it had; where entries become too many,
old ones of the same loader and size are summed up, so that no step is lost.
"""

from __future__ import annotations

from feedline.trace.histogram import Histogram
from feedline.trace.run import Pass

__all__ = ["Passes"]

_MOST = 200


class Passes:
    """Entries, oldest first, and the one that goes on."""

    def __init__(self) -> None:
        self.entries: list[Pass] = []
        self.now: Pass | None = None
        self._sizes: dict[int | None, Pass] = {}  # of the pass that goes on

    def begin(self, loader: int, epoch: int, at_s: float) -> None:
        """A pass begins, of a size that its first batch shows."""
        self._sizes = {}
        self._enter(Pass(loader=loader, epoch=epoch, begun_s=at_s, ended_s=at_s))

    def of_size(self, size: int | None) -> Pass:
        """The entry for batches of a size."""
        now = self.now
        assert now is not None, "a batch belongs to a pass"
        if not self._sizes:
            now.image_size = size
            self._sizes[size] = now
        elif size != now.image_size:
            now.ended = "size changed"
            known = self._sizes.get(size)
            if known is None:
                known = Pass(
                    loader=now.loader,
                    epoch=now.epoch,
                    passes=0,
                    image_size=size,
                    begun_s=now.ended_s,
                    ended_s=now.ended_s,
                )
                self._sizes[size] = known
                self._enter(known)
            self.now = known
            return known
        return now

    def end(self, how: str) -> None:
        """The pass is over."""
        if self.now is not None:
            self.now.ended = how
            self.now = None

    def _enter(self, entry: Pass) -> None:
        self.now = entry
        self.entries.append(entry)
        if len(self.entries) > _MOST:
            self.entries = _summed_up(self.entries)


def _summed_up(passes: list[Pass]) -> list[Pass]:
    """Let old entries of the same loader and size be one, or, where that is not enough, any two."""
    recent = passes[len(passes) // 2 :]
    kept: dict[tuple[int, int | None], Pass] = {}
    for each in passes[: len(passes) // 2]:
        known = kept.setdefault((each.loader, each.image_size), each)
        if known is not each:
            _join(known, each)
    old = list(kept.values())
    while len(old) > _MOST // 4:
        first, second = old[-2:]
        _join(first, second)
        old.pop()
    return old + recent


def _join(into: Pass, other: Pass) -> None:
    into.passes += other.passes
    if into.image_size != other.image_size:
        into.image_size = None
    into.ended_s, into.ended = other.ended_s, other.ended
    into.batches += other.batches
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
