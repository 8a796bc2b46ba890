"""Processes that only do the work of workers, to measure the cost of handing over batches.

Each process repeatedly makes tasks of rows like a worker, with random crops and checksums, in its
own memory; together they use as much memory as the loader's batches (see `feedline.bench.loaders`).
Nothing is handed over.
"""

from __future__ import annotations

from feedline import ImageFolder, TrainCrop
from feedline.bench.loaders import PREFETCH, BareProcesses, bare_rows
from feedline.bench.pool import ProcessPool
from peers.work import RATIO, SCALE, Work

NAME = "bare processes, feedline's rows"
NEEDS = ("torch", "feedline")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "cache")


class BareRows:
    """BareProcesses, started once; they end with this process."""

    def __init__(self, work: Work) -> None:
        self._pool = ProcessPool(work.workers)
        self._bare = BareProcesses(
            self._pool,
            ImageFolder(work.folder, TrainCrop(scale=SCALE, ratio=RATIO)),
            name="rows",
            size=work.size,
            rows=bare_rows(work.batch_size, PREFETCH + 1, work.workers),
        )

    def rate(self, seconds: float) -> tuple[int, float]:
        """Run for about `seconds`; return the images and the seconds."""
        turn = self._bare.turn(seconds)
        return turn.images, turn.seconds


def bare(work: Work) -> BareRows:
    return BareRows(work)
