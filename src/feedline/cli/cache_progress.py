"""How `feedline cache` shows how far it is: what will be made, once, then a bar with the rate.

Guarantees: lines go to stdout, the bar to stderr; where that is no terminal there are lines alone.
"""

from __future__ import annotations

import time

from rich.filesize import decimal
from rich.progress import Progress as Bar

from feedline.cache.unit_maker import Progress
from feedline.cli.progress import note

__all__ = ["BuildProgress", "CheckProgress"]


class BuildProgress:
    """What `build_cache` and `add_size` report, to a bar.

    Args:
        bar: shows it.

    Attributes:
        made: how many images this run has made.
    """

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("looking at the images", total=None)
        self._started = time.monotonic()
        self.made = 0

    def __call__(self, progress: Progress) -> None:
        """Show how far it is."""
        self.made = progress.made
        if not self.made:
            self._announce(progress)
            self._started = time.monotonic()
            total = progress.estimate.images
            self._bar.reset(
                self._task, total=total, completed=progress.images, description="images"
            )
        else:
            rate = self.made / (time.monotonic() - self._started)
            self._bar.update(
                self._task, description=f"images, {rate:.0f}/s", completed=progress.images
            )

    def _announce(self, progress: Progress) -> None:
        expected, done = progress.estimate, progress.images
        for level, size in zip(expected.levels, expected.level_bytes, strict=True):
            note(self._bar, f"{level}: about {decimal(round(size))}")
        rest = expected.images - done
        seconds = expected.seconds * rest / expected.images / progress.makers
        last = f"{max(1.0, seconds):.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        before = f", {done} are done already" if done else ""
        note(self._bar, f"{expected.images} images{before}: about {last} to go")


class CheckProgress:
    """What `verify` reports, to a bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._started = bar, time.monotonic()
        self._task = bar.add_task("images", total=None)

    def __call__(self, done: int, total: int) -> None:
        """Show how far it is."""
        rate = done / (time.monotonic() - self._started)
        self._bar.update(
            self._task, description=f"images, {rate:.0f}/s", completed=done, total=total
        )


class RepairProgress:
    """What `repair_cache` reports, to a bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._task = bar, bar.add_task("checking", total=None)

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is."""
        self._bar.update(self._task, description=stage, completed=done, total=total)
