"""One line on stderr with the current rates of a loop.

Guarantees: drawn within steps, at most once a second, without a thread, and removed at the end of a
pass. The program's own stdout and stderr are unchanged; its output on the same terminal follows the
line. If stderr is not a terminal, a line is printed every 30 seconds instead. Only rank 0 draws.
Respects NO_COLOR.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.live import Live
from rich.text import Text

from feedline.profile.metrics import MetricsReader
from feedline.system import rank_and_world
from feedline.throughput.step_model import THRESHOLDS
from feedline.timing.recorder import Recorder

__all__ = ["Panel", "create_panel", "format_line"]

_REFRESH_S = 1.0
_LINE_S = 30.0
_HIGH_PCT, _MODERATE_PCT = 100 * THRESHOLDS.high_data_wait, 100 * THRESHOLDS.data_wait


def create_panel(recorder: Recorder, wanted: bool | str) -> Panel | None:
    """Create a panel if it is wanted and can be drawn.

    Args:
        recorder: recorder of the run.
        wanted: True, False or "auto" (if stderr is a terminal).
    """
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
    """Draws the metrics of a run.

    Args:
        recorder: recorder of the run.
    """

    name = "the panel"

    def __init__(self, recorder: Recorder) -> None:
        self._metrics = MetricsReader(recorder)
        self._drawn_s = self._printed_s = recorder.now_s()
        self._live: Live | None = None

    def tick(self, now_s: float) -> None:
        """Draw if it is time; `now_s` is the time since the run's start."""
        if not _on_terminal():
            self._print(now_s)
        elif now_s - self._drawn_s >= _REFRESH_S:
            self._draw(now_s)

    def end(self, now_s: float) -> None:
        """Remove the line at the end of a pass."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _text(self, now_s: float) -> Text:
        self._drawn_s = now_s
        return format_line(self._metrics.read())

    def _print(self, now_s: float) -> None:
        if now_s - self._printed_s >= _LINE_S:
            self._printed_s = now_s
            Console(file=sys.stderr).print(self._text(now_s), soft_wrap=True)

    def _draw(self, now_s: float) -> None:
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
        text = self._text(now_s)
        text.truncate(self._live.console.width - 1, overflow="ellipsis")
        self._live.update(text, refresh=True)


def format_line(figures: dict[str, float]) -> Text:
    """Format the metrics of `MetricsReader.read` in one line."""
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
        style = "red" if wait >= _HIGH_PCT else "yellow" if wait >= _MODERATE_PCT else "green"
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
