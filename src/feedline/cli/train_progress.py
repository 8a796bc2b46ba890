"""How `feedline train` shows a run: a line for each epoch, and a bar.

Guarantees: lines go to stdout, so `feedline train ... | tee log` keeps them; the bar goes to
stderr. Where stderr is no terminal there are lines alone.
"""

from __future__ import annotations

from rich.progress import Progress

from feedline.cli.progress import note
from feedline.train.journal import EpochRecord

__all__ = ["TrainProgress", "epoch_line"]


def epoch_line(record: EpochRecord, *, epochs: int) -> str:
    """One epoch in one line: size, loss, accuracy, images/s, and where a step's time went."""
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
    return "  ".join(parts)


class TrainProgress:
    """A run's `Report` to a bar and to stdout."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=None)
        self._what = ""
        self._validated = 0

    def _show(self, description: str, done: int | None = None) -> None:
        self._bar.update(self._task, description=description, completed=done)

    def note(self, text: str) -> None:
        """Print a line."""
        note(self._bar, text)

    def begin(self, *, epoch: int, size_px: int, done: int, total: int) -> None:
        """Show the epoch in the bar."""
        self._what, self._validated = f"epoch {epoch} at {size_px} px", 0
        self._bar.update(self._task, description=self._what, completed=done, total=total)

    def stepped(self, *, done: int, loss: float | None) -> None:
        """Move the bar."""
        self._show(self._what if loss is None else f"{self._what}, loss {loss:.3f}", done)

    def validating(self, *, rows: int) -> None:
        """Show how many images are validated."""
        self._validated += rows
        self._show(f"{self._what}, validated {self._validated}")

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """Print the epoch's line."""
        self.note(epoch_line(record, epochs=epochs))
