"""feedline's own loader, turn by turn."""

from __future__ import annotations

import time
from typing import Any

from feedline.bench.rate import Turn, count, endless, family_cpu
from feedline.bench.sample import Sample
from feedline.bench.settings import Settings
from feedline.loader import DataLoader

__all__ = ["PREFETCH", "Ours"]

PREFETCH = 3
"""Batches that the loader makes ahead, as by default."""


class Ours:
    """A feedline.DataLoader that lives from turn to turn; a context manager.

    Args:
        name: what to call it.
        sample: the images, in their order.
        settings: size of the images and of the batches.
        workers: processes; 0 loads in this one.

    `first_batch_s` is the time from building it to its first batch. Where another lives already,
    it is shorter: they share their fork server.
    """

    def __init__(self, name: str, sample: Sample, settings: Settings, workers: int) -> None:
        self.name = name
        self.first_batch_s: float | None
        start = time.perf_counter()
        self._loader: DataLoader[Any] = DataLoader(
            sample,
            settings.batch_size,
            image_size=settings.size_px,
            shuffle=False,  # the sample comes in random order already
            num_workers=workers,
            prefetch=PREFETCH,
            on_error="skip",
            rank=0,  # all images, also where the environment names a rank
            world_size=1,
            seed=0,
        )
        try:
            self._batches = endless(self._loader)
            next(self._batches)
            self.first_batch_s = time.perf_counter() - start
        except BaseException:
            self._loader.close()
            raise

    def turn(self, seconds: float) -> Turn:
        """Count images for about this long."""
        ahead = PREFETCH + 1 if self._loader.num_workers else 0
        return count(self._batches, ahead=ahead, unit=1, seconds=seconds, cpu_s=family_cpu())

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Images that could not be loaded: their paths and why."""
        return self._loader.skipped

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loader.close()
