"""Who is measured: feedline and bare processes on originals and copies, and torch if asked.

Guarantees: all that a contestant starts ends with the stack it was entered on. One of torch's
that breaks is left out, with its reason; it does not cost the others their figures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from feedline.bench.bare import Bare, bare_rows
from feedline.bench.copies import Copies
from feedline.bench.ours import PREFETCH, Ours
from feedline.bench.pool import Pool
from feedline.bench.rate import Turn, settle_down
from feedline.bench.result import Files, LeftOut, Loader, Row
from feedline.bench.sample import Sample
from feedline.bench.settings import Settings
from feedline.bench.theirs import FORMS, Theirs
from feedline.bench.turns import Turns
from feedline.errors import WorkerError
from feedline.images.folder import ImageFolder

__all__ = ["Contestant", "Entry", "enter_ours", "enter_torch", "take_turns"]


class Contestant(Protocol):
    """A loader whose images are counted."""

    name: str
    first_batch_s: float | None

    def turn(self, seconds: float) -> Turn:
        """Count images for about this long."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant, and what kind it is."""

    contestant: Contestant
    loader: Loader
    files: Files


def enter_ours(
    stack: contextlib.ExitStack,
    pool: Pool,
    originals: Sample,
    copies: Copies | None,
    settings: Settings,
    workers: int,
) -> list[Entry]:
    """Start feedline on the originals and on copies, and for each the same by bare processes."""
    samples: list[tuple[Files, str, Sample]] = [("originals", "originals", originals)]
    first_batches_s: dict[str, float | None] = {}
    if copies is not None:
        folder = ImageFolder(copies.root)
        copied = Sample(folder, range(len(folder)))
        samples.append(("copies", f"{copies.side_px} px copies", copied))
        # The first loader starts the fork server that all share, which takes the longest: each is
        # the first once, and the originals' is so last.
        with Ours("", copied, settings, workers) as alone:
            first_batches_s["copies"] = alone.first_batch_s
    entries: list[Entry] = []
    rows = bare_rows(settings.batch_size, PREFETCH + 1, len(pool))
    for files, name, sample in samples:
        loader = stack.enter_context(Ours(f"feedline, {name}", sample, settings, workers))
        loader.first_batch_s = first_batches_s.get(files, loader.first_batch_s)
        bare = Bare(pool, sample, name=f"bare processes, {name}", size=settings.size_px, rows=rows)
        entries += [Entry(loader, "feedline", files), Entry(bare, "bare", files)]
    return entries


def enter_torch(
    pool: Pool, originals: Sample, settings: Settings, workers: int, left_out: list[LeftOut]
) -> list[Entry]:
    """Start both forms of torch's loader on the originals, in a `torch_process`."""
    entries: list[Entry] = []
    for form, name in FORMS.items():
        try:
            theirs = Theirs(pool, form, originals, settings, workers)
        except (WorkerError, OSError) as error:
            left_out.append(_left_out(name, error))
        else:
            entries.append(Entry(theirs, "torch", "originals"))
    return entries


def _left_out(name: str, error: Exception) -> LeftOut:
    return LeftOut(name, str(error).splitlines()[0])


def take_turns(
    entries: list[Entry], turns: Turns, left_out: list[LeftOut], advance: Callable[[int, str], None]
) -> tuple[Row, ...]:
    """Have all contestants count, one after the other, round after round.

    Args:
        entries: the contestants.
        turns: how many rounds, and how long each turn is.
        left_out: gets those that broke.
        advance: called with the number of turns that are over and the name of whose turn it is.
    """
    counted: dict[Entry, list[Turn]] = {entry: [] for entry in entries}
    over = 0
    for number in range(turns.rounds):
        for entry in list(counted):
            name = entry.contestant.name
            advance(over, f"round {number + 1} of {turns.rounds}: {name}")
            over += 1
            settle_down()
            try:
                counted[entry].append(entry.contestant.turn(turns.seconds))
            except (WorkerError, OSError) as error:
                if entry.loader != "torch":
                    raise
                left_out.append(_left_out(name, error))
                del counted[entry]
    return tuple(
        Row(
            name=entry.contestant.name,
            loader=entry.loader,
            files=entry.files,
            first_batch_s=entry.contestant.first_batch_s,
            turns=tuple(taken),
        )
        for entry, taken in counted.items()
    )
