"""Bare processes that do nothing but call the row pipeline: what handing batches over costs.

Each process calls `ImageFolder.load` over and over, crops drawn, checksums compared, into memory of
its own, as much for all together as the loader's batches have (`feedline.bench.bare`). No process
waits for a batch and nothing is handed on.
"""

from __future__ import annotations

from feedline import ImageFolder, TrainCrop
from feedline.bench.bare import Bare, bare_rows
from feedline.bench.ours import PREFETCH
from feedline.bench.pool import Pool
from peers.work import RATIO, SCALE, Work

NAME = "bare processes, feedline's rows"
NEEDS = ("torch", "feedline")
PIXELS = "uint8, torchvision's pixels"
KINDS = ("jpeg", "cache")


class BareRows:
    """Bare processes, started once; they end with this one."""

    def __init__(self, work: Work) -> None:
        self._pool = Pool(work.workers)
        self._bare = Bare(
            self._pool,
            ImageFolder(work.folder, TrainCrop(scale=SCALE, ratio=RATIO)),
            name="rows",
            size=work.size,
            rows=bare_rows(work.batch_size, PREFETCH + 1, work.workers),
        )

    def rate(self, seconds: float) -> tuple[int, float]:
        """Images made in about `seconds`, and the seconds that it took."""
        turn = self._bare.turn(seconds)
        return turn.images, turn.seconds


def bare(work: Work) -> BareRows:
    return BareRows(work)
