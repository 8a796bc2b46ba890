"""How a run is shown: a line for each epoch, and a bar where stderr is a terminal.

Guarantees: lines go to stdout, so `feedline train ... | tee log` keeps them; the bar goes to
stderr and is gone at the end. Where stderr is no terminal there are lines alone.
"""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
    """A `Report` to the terminal; a context manager, for the bar's sake."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
            )
            self._task = self._bar.add_task("starting", total=None)
        self._what = ""
        self._validated = 0

    def __enter__(self) -> TrainProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def _line(self, text: str) -> None:
        if self._bar and sys.stdout.isatty():  # on the same screen, the bar must step aside
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def _show(self, description: str, done: int | None = None) -> None:
        if self._bar:
            self._bar.update(self._task, description=description, completed=done)

    def note(self, text: str) -> None:
        """Print a line."""
        self._line(text)

    def begin(self, *, epoch: int, size_px: int, done: int, total: int) -> None:
        """Show the epoch in the bar."""
        self._what, self._validated = f"epoch {epoch} at {size_px} px", 0
        if self._bar:
            self._bar.update(self._task, total=total)
        self._show(self._what, done)

    def stepped(self, *, done: int, loss: float | None) -> None:
        """Move the bar."""
        self._show(self._what if loss is None else f"{self._what}, loss {loss:.3f}", done)

    def validating(self, *, rows: int) -> None:
        """Show how many images are validated."""
        self._validated += rows
        self._show(f"{self._what}, validated {self._validated}")

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """Print the epoch's line."""
        self._line(epoch_line(record, epochs=epochs))
