"""Progress of all commands: a bar on stderr, and lines on stdout.

Guarantees: the bar is drawn only if stderr is a terminal, and is removed at the end. Lines go to
stdout, so `feedline train ... | tee log` keeps them.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from feedline.cli.output import echo
from feedline.text import as_bytes, as_seconds, printable
from feedline.throughput.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from feedline.cache.job import BuildState
    from feedline.timing.steps import StepTimes
    from feedline.train.history import EpochRecord, TrainPosition, TrainReport
    from feedline.train.recipe import Recipe
else:
    TrainReport = object  # importing it would load torch for every bar

_REDRAW_S = 0.1
_WINDOW_S = 10.0  # of the latest steps, for images/s and wait


class ProgressBar:
    """A bar with one task; a context manager. The last column is the time elapsed or remaining, or
    the text of `update(end=...)`.

    A `steady` bar redraws in calls only: if the text is new, and ten times a second. One that
    redraws itself would use the cores that are being measured.
    """

    def __init__(
        self,
        description: str,
        *,
        clock: Literal["elapsed", "remaining", "text"] = "remaining",
        steady: bool = False,
    ) -> None:
        columns: dict[str, ProgressColumn] = {
            "elapsed": TimeElapsedColumn(),
            "remaining": TimeRemainingColumn(),
            "text": TextColumn("{task.fields[end]}"),
        }
        self._drawn, self._steady, self._drawn_s = sys.stderr.isatty(), steady, 0.0
        self._what = description
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            columns[clock],
            console=Console(stderr=True, quiet=not self._drawn),
            transient=True,
            redirect_stdout=False,  # stdout stays the command's own
            auto_refresh=not steady,
            disable=not self._drawn,
        )
        self._task = self._bar.add_task(description, total=None, end="")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def stage(self, what: str, done: int, total: int) -> None:
        """Show the current work and its parts; a `ProgressCallback`."""
        self.update(done, total, what)

    def update(
        self, done: int | None = None, total: int | None = None, what: str = "", **fields: Any
    ) -> None:
        """Change the bar; None and empty text leave a part unchanged."""
        now, is_new = time.monotonic(), what not in ("", self._what)
        self._what = what or self._what
        refresh = self._steady and (is_new or now - self._drawn_s >= _REDRAW_S)
        if refresh:
            self._drawn_s = now
        self._bar.update(
            self._task,
            completed=done,
            total=total,
            description=what or None,
            refresh=refresh,
            **fields,
        )

    def note(self, text: str, *, err: bool = False) -> None:
        """Print a line above the bar, to stdout or stderr."""
        file = sys.stderr if err else sys.stdout
        if self._drawn and file.isatty():
            text = printable(text)
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            echo(text, err=err)


class BuildProgress:
    """Shows how a cache is built: the estimate, once, then a bar with images/s."""

    def __init__(self, bar: ProgressBar) -> None:
        self._bar, self._started, self.new_images = bar, time.monotonic(), 0

    def __call__(self, state: BuildState) -> None:
        """Show the state of a build."""
        self.new_images = state.new_images
        total = state.estimate.images
        if not self.new_images:
            self._announce(state)
            self._started = time.monotonic()
            self._bar.update(state.images, total, "images")
        else:
            rate = self.new_images / (time.monotonic() - self._started)
            self._bar.update(state.images, total, f"images, {rate:.0f}/s")

    def _announce(self, state: BuildState) -> None:
        estimate = state.estimate
        for level, size in zip(estimate.levels, estimate.level_bytes, strict=True):
            self._bar.note(f"{level}: about {as_bytes(size)}")
        left = estimate.images - state.images
        seconds = estimate.seconds * left / estimate.images / state.processes
        before = f", {state.images} already done" if state.images else ""
        self._bar.note(
            f"{estimate.images} images{before}: about {as_seconds(max(1, seconds))} left"
        )


def _scaled(costs: Mapping[int, float], size: int) -> float:
    """Seconds of an image of a size, by its pixels and the nearest known size."""
    near = min(costs, key=lambda known: abs(known**2 - size**2))
    return costs[near] * (size / near) ** 2


def _epoch_line(record: EpochRecord, epochs: int, left: str) -> str:
    """An epoch in one line: size, loss, accuracy, images/s, parts of the mean step, time left."""
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
    return "  ".join([*parts, left]).rstrip()


class TrainProgress(TrainReport):
    """Shows a training run on a bar whose last column is text."""

    def __init__(self, bar: ProgressBar, clock: Callable[[], float] = time.monotonic) -> None:
        self._bar, self._clock = bar, clock
        self._recipe: Recipe | None = None
        self._images = self._val_images = 0
        self._costs: dict[int, float] = {}
        self._val_costs: dict[int, float] = {}
        self._window: deque[tuple[float, int, StepTimes]] = deque()
        self._text = ""
        self._loss: float | None = None
        self._top1: float | None = None

    def note(self, text: str) -> None:
        """Print a line."""
        self._bar.note(text)

    def planned(
        self, recipe: Recipe, *, images: int, val_images: int, records: Sequence[EpochRecord]
    ) -> None:
        """Store the plan and the costs of finished epochs."""
        self._recipe, self._images, self._val_images = recipe, images, val_images
        for record in records:
            self._add(record)

    def _add(self, record: EpochRecord) -> None:
        assert self._recipe is not None
        self._top1 = record.val_top1
        if record.samples and record.seconds > 0:
            self._costs[record.size_px] = record.seconds / record.samples
        if record.val_samples and record.val_seconds:
            size = self._recipe.phase_at(record.epoch - 1).val_image_size or 0
            self._val_costs[size] = record.val_seconds / record.val_samples

    def _left(self, epoch: int, done: int = 0) -> str:
        """Estimate the time until the end of the run; "" before anything was measured.

        A size that was not trained yet costs as much as the nearest one, by its pixels; before the
        first validation, its images cost a third of a training step.
        """
        if self._recipe is None or not self._costs:
            return ""
        left_s = 0.0
        for number in range(epoch, self._recipe.epochs):
            phase = self._recipe.phase_at(number)
            images = self._images - (done if number == epoch else 0)
            left_s += max(0, images) * _scaled(self._costs, phase.size)
            val_size = phase.val_image_size or phase.size
            val_costs = self._val_costs or {
                k: THRESHOLDS.forward * s for k, s in self._costs.items()
            }
            left_s += self._val_images * _scaled(val_costs, val_size)
        return f"{as_seconds(left_s)} left" if left_s else ""

    def begin(self, now: TrainPosition) -> None:
        """Show a new epoch."""
        self._window.clear()
        self._loss = None
        self._show(now)

    def stepped(self, now: TrainPosition) -> None:
        """Move the bar."""
        self._loss = self._loss if now.loss is None else now.loss
        self._window.append((self._clock(), now.images, now.split))
        while len(self._window) > 2 and self._window[-1][0] - self._window[1][0] >= _WINDOW_S:
            self._window.popleft()
        self._show(now)

    def _show(self, now: TrainPosition) -> None:
        parts = [f"lr {now.lr:.2g}"]
        if self._loss is not None:
            parts.append(f"loss {self._loss:.3f}")
        if self._top1 is not None:
            parts.append(f"top-1 {self._top1:.1%}")
        if len(self._window) > 1:
            first_s, first_images, first_split = self._window[0]
            last_s, last_images, last_split = self._window[-1]
            if last_images > first_images and last_s > first_s:
                cost = (last_s - first_s) / (last_images - first_images)
                self._costs[now.size_px] = cost
                parts.append(f"{1 / cost:.0f} images/s")
            spent = last_split - first_split
            total_ms = spent.wait_ms + spent.copy_ms + spent.compute_ms
            if total_ms > 0:
                parts.append(f"wait {(spent.wait_ms + spent.copy_ms) / total_ms:.0%}")
        where = f"phase {now.phase}/{now.phases}, {now.size_px} px, epoch {now.epoch}/{now.epochs}"
        self._text = f"{where}\n{'  '.join(parts)}"
        left = self._left(now.epoch - 1, now.images)
        self._bar.update(now.step, now.steps, self._text, end=left)

    def validating(self, *, done: int) -> None:
        """Show the number of validated images."""
        self._bar.update(what=f"{self._text}  validated {done}")

    def ended(self, record: EpochRecord, *, epochs: int) -> None:
        """Print the line of an epoch."""
        self._add(record)
        self.note(_epoch_line(record, epochs, self._left(record.epoch)))

    def stopping(self, signum: int) -> None:
        """Confirm a signal that requests a stop."""
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        again = "Ctrl-C" if name == "SIGHUP" else f"a second {name}"
        self._bar.note(
            f"{name}: finishing this step, then saving; {again} exits without saving",
            err=True,
        )
