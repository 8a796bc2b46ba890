"""One line on stderr that says how a loop goes, while it does.

Guarantees: it is drawn within steps, once a second at most, and no thread runs for it; it is gone
when a pass is over. stdout and stderr stay the program's own: what it prints is not touched, and
follows the line where both are on one terminal. Where tqdm draws bars it is one of them; where a
display of rich's is live, a line is printed above it every half a minute, as where stderr is no
terminal. Nothing is drawn in ranks other than 0. NO_COLOR is heeded.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from feedline.system import rank_and_world
from feedline.trace.recorder import Recorder
from feedline.watching.window import Window

__all__ = ["Panel", "line", "panel_for"]

_REFRESH_S = 1.0
_LINE_S = 30.0
_HIGH_PCT, _MODERATE_PCT = 20.0, 5.0  # as `diagnose.finding.Thresholds` has them


def panel_for(recorder: Recorder, wanted: bool | str) -> Panel | None:
    """A panel, if one is wanted and has a place here.

    Args:
        recorder: of the run.
        wanted: True; False; or "auto", where stderr is a terminal.
    """
    rank, _ = rank_and_world()
    if rank != 0 or sys.stderr is None or not wanted or (wanted == "auto" and not _on_terminal()):
        return None
    return Panel(recorder)


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


class Panel:
    """Draws a run's figures.

    Args:
        recorder: of the run.
    """

    name = "the panel"

    def __init__(self, recorder: Recorder) -> None:
        self._window = Window(recorder)
        self._drawn_s = self._printed_s = recorder.now_s()
        self._live: Live | None = None
        self._bar: Any = None

    def tick(self, now_s: float) -> None:
        """Time has passed; `now_s` from the run's beginning."""
        if not _on_terminal():
            self._print(now_s, Console(file=sys.stderr, soft_wrap=True))
        elif now_s - self._drawn_s >= _REFRESH_S:
            if (bars := _tqdm()) is not None:
                self._end_live()
                self._draw_bar(bars, now_s)
            elif (other := _other_live(self._live)) is not None:
                self._end_live()
                self._print(now_s, other)
            else:
                self._draw(now_s)

    def end(self, now_s: float) -> None:
        """A pass is over: what was drawn goes."""
        self._end_live()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _text(self, now_s: float) -> Text:
        self._drawn_s = now_s
        return line(self._window.read())

    def _print(self, now_s: float, console: Console) -> None:
        if now_s - self._printed_s >= _LINE_S:
            self._printed_s = now_s
            console.print(self._text(now_s), soft_wrap=True)

    def _draw(self, now_s: float) -> None:
        if self._live is None:
            # What a program prints goes where it would go without the panel, as it is: rich would
            # send it all to stderr, by lines, and read its brackets as markup.
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

    def _draw_bar(self, tqdm: Any, now_s: float) -> None:
        if self._bar is None or self._bar.disable:
            self._bar = tqdm(bar_format="{desc}", leave=False, file=sys.stderr)
            self._bar.feedline = True
        self._bar.set_description_str(self._text(now_s).plain)

    def _end_live(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def line(figures: dict[str, float]) -> Text:
    """The figures of `Window.read` as a line."""
    text = Text.assemble(("feedline", "bold"))

    def say(words: str, style: str = "") -> None:
        text.append("  " + words, style=style)

    def figure(name: str) -> float | None:
        return figures.get(f"feedline/{name}")

    if (rate := figure("images_per_s")) is not None:
        say(f"{rate:,.0f} samples/s")
    else:
        say(f"{figures.get('feedline/batches_per_s', 0.0):,.1f} batches/s")
    if (wait := figure("wait_pct")) is not None:
        style = "red" if wait >= _HIGH_PCT else "yellow" if wait >= _MODERATE_PCT else "green"
        say(f"waiting {wait:.0f}%", style)
    for name in ("wait", "copy", "compute"):
        if (ms := figure(f"{name}_ms_p50")) is not None:
            say(f"{name} {ms:.1f} ms (p95 {figures[f'feedline/{name}_ms_p95']:.1f})")
    if (size := figure("image_size")) is not None:
        say(f"{size:.0f} px")
    if workers := figure("workers"):
        say(f"{workers:.0f} workers")
    if (busy := figure("gpu_busy_pct")) is not None:
        say(f"GPU {busy:.0f}%")
    return text


def _tqdm() -> Any:
    """The class of tqdm's bars, where one is drawn that is not ours."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    bars = list(getattr(tqdm, "_instances", ()))
    if any(not bar.disable and not getattr(bar, "feedline", False) for bar in bars):
        return tqdm
    return None


def _other_live(own: Live | None) -> Console | None:
    """The console of rich's that has a display of someone else's."""
    console = getattr(sys.modules.get("rich"), "_console", None)
    lives = getattr(console, "_live_stack", None) or [getattr(console, "_live", None)]
    other = any(live is not None and live is not own for live in lives)
    return console if other else None
