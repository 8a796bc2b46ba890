"""The starts of passes: what is waited for before a pass has its first batch.

Guarantees: pure; a second loader, as one for validation is, counts as none that was built anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from feedline.trace.run import Loader, Pass, Run

__all__ = ["Starts", "starts_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Starts:
    """Of all passes but the first, which nothing can save.

    Args:
        total_ms: from asking for their first batches to having them, together.
        count: how many there were.
        rebuilt_ms: of these, first passes over a loader that was built in the place of another,
        rebuilds: and how many.
    """

    total_ms: float
    count: int
    rebuilt_ms: float
    rebuilds: int


def starts_of(run: Run) -> Starts:
    """Sum up the starts of a run."""
    total = rebuilt = 0.0
    count, rebuilds = 0, 0
    seen: set[tuple[int, int]] = set()
    sorts: list[tuple[object, ...]] = []
    for each in run.passes:
        if not each.start_ms.count:
            continue
        own, starts = each.start_ms.total_ms, each.start_ms.count
        which, sort = (each.loader, each.built), _sort(run.loaders, each)
        if not seen:
            # Where several passes are summed up, the first is taken to be the longest.
            own, starts = max(0.0, own - each.start_ms.longest_ms), starts - 1
        elif which not in seen and sort in sorts:
            rebuilt += own
            rebuilds += starts
        seen.add(which)
        sorts.append(sort)
        total += own
        count += starts
    return Starts(total_ms=total, count=count, rebuilt_ms=rebuilt, rebuilds=rebuilds)


def _sort(loaders: list[Loader], one: Pass) -> tuple[object, ...]:
    """What stays the same where a loop builds its loader anew, for another batch size as well."""
    if not 0 <= one.loader < len(loaders):
        return (one.loader,)
    said = loaders[one.loader]
    if said.samples is None:  # of a stream: only one that is said to be the same is
        return (one.loader,)
    return said.kind, said.name, said.dataset, said.samples
