"""Where a run stands, for who shows it."""

from __future__ import annotations

from dataclasses import dataclass

from feedline.trace.split import Totals

__all__ = ["Standing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a run stands between two steps.

    Args:
        epoch: under way, of
        epochs: counted from 1, as
        phase: of
        phases: are.
        size_px: side of the images of this phase.
        done: steps of the run that are done, of
        total: them all.
        images: that the epoch has learnt from so far, over all ranks.
        lr: the learning rate of the latest step, or of the next one before any.
        loss: the epoch's mean so far; None where it was not read.
        split: this process's steps so far, summed up by what they spent their time on. Only
            differences of two count.
    """

    epoch: int
    epochs: int
    phase: int
    phases: int
    size_px: int
    done: int
    total: int
    images: int
    lr: float
    loss: float | None
    split: Totals
