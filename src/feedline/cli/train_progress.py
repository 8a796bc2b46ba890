"""How `feedline train` shows a run: a line for each epoch, and a bar.

Guarantees: lines go to stdout, so `feedline train ... | tee log` keeps them; the bar goes to
stderr, and so does the word that a stop was heard. Where stderr is no terminal there is no bar.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence

from rich.progress import Progress

from feedline.cli.progress import note
from feedline.forecast.text import duration
from feedline.train.journal import EpochRecord
from feedline.train.pace import Pace
from feedline.train.recipe import Recipe
from feedline.train.standing import Standing
from feedline.train.time_left import TimeLeft

__all__ = ["TrainProgress", "epoch_line", "stopping_line"]


def stopping_line(signum: int) -> str:
    """That a signal was heard, what comes of it, and of a second one."""
    name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
    return (
        f"{name}: finishing this step, then saving; a second {name} leaves at once without saving"
    )


def epoch_line(record: EpochRecord, *, epochs: int, left_s: float | None = None) -> str:
    """One epoch in one line: size, loss, accuracy, images/s, and where a step's time went.

    Args:
        record: of the epoch.
        epochs: that the run has.
        left_s: seconds that it still takes; None says nothing of that.
    """
    parts = [
        f"epoch {record.epoch}/{epochs}",
        f"{record.size_px} px",
        f"loss {record.train_loss:.3f}",
    ]
    if record.val_top1 is not None:
        parts.append(f"val top-1 {record.val_top1:.1%}")
    parts.append(f"{record.images_per_s:.0f} images/s")
    if record.wait_ms is not None and record.copy_ms is not None and record.compute_ms is not None:
        total = record.wait_ms + record.copy_ms + record.compute_ms
        parts.append(
            f"step {total:.1f} ms = wait {record.wait_ms:.1f} + copy {record.copy_ms:.1f} "
            f"+ compute {record.compute_ms:.1f}"
        )
    if left_s:
        parts.append(f"{duration(left_s)} left")
    return "  ".join(parts)


def standing_lines(now: Standing, pace: Pace, top1: float | None) -> str:
    """Where a run stands, in two lines of at most 80 columns.

    Args:
        now: where it stands.
        pace: of its latest steps.
        top1: of the latest validation, 0 to 1; None before any.
    """
    where = f"phase {now.phase}/{now.phases}, {now.size_px} px, epoch {now.epoch}/{now.epochs}"
    parts = [f"lr {now.lr:.2g}"]
    if now.loss is not None:
        parts.append(f"loss {now.loss:.3f}")
    if top1 is not None:
        parts.append(f"top-1 {top1:.1%}")
    if pace.images_per_s is not None:
        parts.append(f"{pace.images_per_s:.0f} images/s")
    if pace.wait_share is not None:
        parts.append(f"wait {pace.wait_share:.0%}")
    return f"{where}\n{'  '.join(parts)}"


class TrainProgress:
    """A run's `Report` to a bar and to stdout.

    Args:
        bar: whose tasks have a field `left`.
        clock: seconds that only grow.
    """

    def __init__(self, bar: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._bar, self._clock = bar, clock
        self._task = bar.add_task("starting", total=None, left="")
        self._what = ""
        self._loss: float | None = None
        self._top1: float | None = None
        self._validated = 0
        self._left: TimeLeft | None = None
        self._pace = Pace()

    def note(self, text: str) -> None:
        """Print a line."""
        note(self._bar, text)

    def planned(
        self, recipe: Recipe, *, images: int, val_images: int, records: Sequence[EpochRecord]
    ) -> None:
        """Reckon with what there is to do, and with what it has taken so far."""
        self._left = TimeLeft(recipe, images=images, val_images=val_images, records=records)
        tops = [record.val_top1 for record in records if record.val_top1 is not None]
        self._top1 = tops[-1] if tops else None

    def begin(self, now: Standing) -> None:
        """Show the epoch in the bar."""
        self._pace, self._validated, self._loss = Pace(), 0, None
        self._show(now)

    def stepped(self, now: Standing) -> None:
        """Move the bar."""
        self._loss = self._loss if now.loss is None else now.loss
        self._pace.add(self._clock(), now.images, now.split)
        if self._left is not None and self._pace.images:
            self._left.trained(now.size_px, self._pace.images, self._pace.seconds)
        self._show(now)

    def _show(self, now: Standing) -> None:
        self._what = standing_lines(now, self._pace, self._top1)
        left_s = None if self._left is None else self._left.seconds(now.epoch - 1, now.images)
        self._bar.update(
            self._task,
            description=self._what,
            completed=now.done,
            total=now.total,
            left="" if left_s is None else f"{duration(left_s)} left",
        )

    def validating(self, *, rows: int) -> None:
        """Show how many images are validated."""
        self._validated += rows
        self._bar.update(self._task, description=f"{self._what}  validated {self._validated}")

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """Print the epoch's line."""
        self._top1 = record.val_top1
        left_s = None
        if self._left is not None:
            self._left.ended(record)
            left_s = self._left.seconds(record.epoch)
        self.note(epoch_line(record, epochs=epochs, left_s=left_s))

    def stopping(self, signum: int) -> None:
        """Say that a stop was heard."""
        said = stopping_line(signum)
        if self._bar.disable:
            print(said, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(said, markup=False, highlight=False, soft_wrap=True)
