"""The characters that pictures in a terminal are made of, with their colours.

Guarantees: each state has a character of its own, so a picture needs no colour; where the terminal
can write no blocks, ASCII stands for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from feedline.report.lanes import Cause

__all__ = ["ASCII", "BLOCKS", "COLOURS", "Glyphs", "glyphs_for"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Glyphs:
    """Which character stands for what.

    Args:
        busy: a worker makes, a copy goes on, a step computes.
        idle: for each cause.
        levels: from little to much, for a depth or a height.
        mark: where a phase begins.
    """

    busy: str
    idle: dict[Cause, str]
    levels: str
    mark: str

    def level(self, share: float) -> str:
        """The character for a height from 0 to 1."""
        return self.levels[min(len(self.levels) - 1, max(0, int(share * len(self.levels))))]


BLOCKS = Glyphs(
    busy="█",
    idle={
        "making": "▒",
        "copying": "░",
        "nobody": "!",
        "unknown": "?",
        "others": "~",
        "between": " ",
        "behind": "·",
    },
    levels="▁▂▃▄▅▆▇█",
    mark="┬",
)
ASCII = Glyphs(
    busy="#",
    idle={
        "making": "=",
        "copying": "%",
        "nobody": "!",
        "unknown": "?",
        "others": "~",
        "between": " ",
        "behind": ".",
    },
    levels="123456789",
    mark="+",
)

COLOURS = {
    "make": "blue",
    "compute": "green",
    "copy": "cyan",
    "queued": "bright_black",
    "making": "red",
    "copying": "magenta",
    "nobody": "bold red",
    "unknown": "yellow",
    "others": "yellow",
    "between": "",
    "behind": "bright_black",
    "wait": "red",
}
"""By stage, or by cause where a lane is idle."""


def glyphs_for(stream: IO[str]) -> Glyphs:
    """Those that a stream can write."""
    needed = [BLOCKS.busy, *BLOCKS.idle.values(), BLOCKS.levels, BLOCKS.mark]
    try:
        "".join(needed).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS
