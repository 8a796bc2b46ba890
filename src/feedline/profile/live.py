"""Current figures of a run: one line on stderr, and a callback, such as a writer for TensorBoard.

Guarantees: reading the metrics takes a fraction of a millisecond and covers at most the latest 1024
steps; a value that was not measured is missing, never 0. Line and callback run within steps, in the
thread that iterates over the batches, without a thread of their own, and at the end of a pass. The
line is drawn at most once a second, in rank 0 only, and removed at the end of a pass. The program's
own stdout and stderr are unchanged; its output on the same terminal follows the line. If stderr is
not a terminal, a line is printed every 30 seconds instead. Respects NO_COLOR.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.errors import UsageError
from feedline.randomness import seeded, unbroken
from feedline.system import rank_and_world
from feedline.throughput.thresholds import THRESHOLDS
from feedline.timing.recorder import Recorder

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

MetricsCallback = Callable[[dict[str, float]], object]
"""Function of metrics by name, as returned by `MetricsReader.read`."""

_PERCENTILES = (50, 95, 99)
_REFRESH_S = 1.0
_LINE_S = 30.0


class MetricsReader:
    """Reads the metrics of a run at intervals."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last = self._counts()

    def _counts(self) -> tuple[float, int, int, int | None]:
        """Time since the run's start, and the steps, batches and samples so far."""
        recorder = self._recorder
        return recorder.now_s(), recorder.steps, recorder.batches, recorder.samples

    def read(self) -> dict[str, float]:
        """Return the metrics since the last reading, by names with units.

        Times are in ms, shares in percent. `wait` is the data wait. `copy` is missing if it cannot
        be separated from the wait.
        """
        recorder = self._recorder
        recorder.flush()
        last_s, last_steps, last_batches, last_samples = self._last
        now_s, steps, batches, samples = self._last = self._counts()
        seconds = max(1e-9, now_s - last_s)
        figures = {
            "feedline/batches": float(batches),
            "feedline/batches_per_s": (batches - last_batches) / seconds,
        }
        if samples is not None and last_samples is not None:
            figures["feedline/images_per_s"] = (samples - last_samples) / seconds
        latest = list(recorder.recent)
        new = min(len(latest), steps - last_steps)
        times = list(islice(latest, len(latest) - new, None))
        parts = {
            "wait": [step[0] for step in times],
            "copy": [step[1] for step in times if step[1] is not None],
            "compute": [step[2] for step in times],
        }
        for name, each in parts.items():
            if each:  # values that occurred, not between two
                found = np.percentile(each, _PERCENTILES, method="inverted_cdf")
                for q, ms in zip(_PERCENTILES, found.tolist(), strict=True):
                    figures[f"feedline/{name}_ms_p{q}"] = ms
        total = sum(map(sum, parts.values()))
        if total > 0:
            figures["feedline/wait_pct"] = 100 * sum(parts["wait"]) / total
        return figures | {f"feedline/{name}": value for name, value in recorder.latest().items()}


def create_panel(recorder: Recorder, wanted: bool | str) -> Panel | None:
    """Create a panel if it is wanted ("auto": if stderr is a terminal) and can be drawn."""
    rank, _ = rank_and_world()
    if rank != 0 or sys.stderr is None or not wanted or (wanted == "auto" and not _on_terminal()):
        return None
    return Panel(recorder)


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):  # stderr is missing or closed
        return False


class Panel:
    """Draws the metrics of a run."""

    name = "the panel"

    def __init__(self, recorder: Recorder) -> None:
        self._metrics = MetricsReader(recorder)
        self._drawn_s = recorder.now_s()
        self._live: Live | None = None
        with unbroken(), seeded(0):  # importing rich draws from Python's random state
            import rich.live  # noqa: F401

    def update(self, now_s: float, *, at_end: bool = False) -> None:
        """Draw or print the line if it is time; remove it at the end of a pass.

        `now_s` is the time since the run's start.
        """
        on_terminal = _on_terminal()
        if at_end and self._live is not None:
            self._live.stop()
            self._live = None
        elif not at_end and now_s - self._drawn_s >= (_REFRESH_S if on_terminal else _LINE_S):
            self._drawn_s = now_s
            self._draw(format_line(self._metrics.read()), on_terminal)

    def _draw(self, text: Text, on_terminal: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        if not on_terminal:
            Console(file=sys.stderr).print(text, soft_wrap=True)
            return
        if self._live is None:
            # Printed text of the program passes unchanged: rich would redirect it to stderr, split
            # it into lines and interpret brackets as markup.
            self._live = Live(
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        text.truncate(self._live.console.width - 1, overflow="ellipsis")
        self._live.update(text, refresh=True)


def format_line(figures: dict[str, float]) -> Text:
    """Format the metrics of `MetricsReader.read` in one line."""
    from rich.text import Text

    text = Text.assemble(("feedline", "bold"))

    def add(words: str, style: str = "") -> None:
        text.append("  " + words, style=style)

    def metric(name: str) -> float | None:
        return figures.get(f"feedline/{name}")

    if (rate := metric("images_per_s")) is not None:
        add(f"{rate:,.0f} samples/s")
    else:
        add(f"{figures.get('feedline/batches_per_s', 0.0):,.1f} batches/s")
    if (wait := metric("wait_pct")) is not None:
        limits = 100 * THRESHOLDS.high_data_wait, 100 * THRESHOLDS.data_wait
        style = "red" if wait >= limits[0] else "yellow" if wait >= limits[1] else "green"
        add(f"data wait {wait:.0f}%", style)
    for name in ("wait", "copy", "compute"):
        if (ms := metric(f"{name}_ms_p50")) is not None:
            add(f"{name} {ms:.1f} ms (p95 {figures[f'feedline/{name}_ms_p95']:.1f})")
    if (size := metric("image_size")) is not None:
        add(f"{size:.0f} px")
    if workers := metric("workers"):
        add(f"{workers:.0f} workers")
    if (busy := metric("gpu_busy_pct")) is not None:
        add(f"GPU {busy:.0f}%")
    return text


def tensorboard_writer(folder: str | os.PathLike[str]) -> MetricsCallback:
    """Create a callback for `feedline.watch(loader, metrics=...)` that writes to TensorBoard.

    The step of each value is the number of batches so far.

    Args:
        folder: folder of the event files, see `torch.utils.tensorboard.SummaryWriter`.

    Raises:
        UsageError: TensorBoard is not installed.
    Example:
        >>> from feedline.profile.live import tensorboard_writer
        >>> callback = tensorboard_writer("runs/today")                      # doctest: +SKIP
        >>> watched = feedline.watch(loader, metrics=callback)               # doctest: +SKIP
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("TensorBoard is not installed", hint="pip install tensorboard") from error
    summary: Any = SummaryWriter(log_dir=os.fspath(folder))

    def write(figures: dict[str, float]) -> None:
        step = int(figures["feedline/batches"])
        for name, value in figures.items():
            if name != "feedline/batches":
                summary.add_scalar(name, value, step)
        summary.flush()

    return write
