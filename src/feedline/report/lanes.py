"""A timeline: lanes that are busy or idle at each moment, and what idleness means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CAUSES", "Cause", "Lane", "Span", "Timeline", "shown_lanes"]

Cause = Literal["", "making", "copying", "nobody", "unknown", "others", "between", "behind"]
"""Why a lane is idle; "" where it is busy."""

CAUSES: dict[Cause, str] = {
    "making": "the step waits: its batch is being made",
    "copying": "the step waits: its batch is being copied",
    "nobody": "the step waits, and no worker makes a batch",
    "unknown": "the step waits; what for was not recorded",
    "others": "idle, while the step waits for another worker",
    "between": "between two passes over the data",
    "behind": "idle behind a computing step, which costs nothing",
}
"""What each cause means, worst first."""

_MOST_WORKERS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch of a lane, in ms from the timeline's beginning.

    Args:
        begun_ms: when it begins.
        ended_ms: when it ends.
        stage: "make", "copy", "compute" or "queued"; "idle" between them; "unknown" where nothing
            was recorded of it.
        cause: of the idleness.
        depth: how many batches are ready, in the lane "ready"; elsewhere 1 or 0.
        batch: counted from the run's beginning; None where that was not recorded.
    """

    begun_ms: float
    ended_ms: float
    stage: str
    cause: Cause = ""
    depth: int = 0
    batch: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """Who, and what it did; without any spans where that was not recorded."""

    name: str
    spans: list[Span]

    @property
    def shares(self) -> dict[str, float]:
        """The share of the time of each busy stage and of each cause of idleness, 0 to 1.

        "unknown" is waiting for what was not recorded, "blank" what was not recorded at all.
        """
        length = sum(span.ended_ms - span.begun_ms for span in self.spans)
        found: dict[str, float] = {}
        for span in self.spans:
            key = "blank" if span.stage == "unknown" else span.cause or span.stage
            found[key] = found.get(key, 0.0) + (span.ended_ms - span.begun_ms) / length
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Some steps, lane by lane.

    Args:
        title: which steps they are.
        begun_s: when they began, from the run's beginning.
        length_ms: from the first moment to the last.
        steps: how many there are.
        wait_ms: how long they waited, in sum.
        lanes: workers first, then the ready queue, the copy and the step.
        left_out: events that do not lie within the steps.
    """

    title: str
    begun_s: float
    length_ms: float
    steps: int
    wait_ms: float
    lanes: list[Lane]
    left_out: int


def shown_lanes(timeline: Timeline) -> tuple[list[Lane], int]:
    """The lanes that a picture has room for, and how many workers it leaves out."""
    others = [lane for lane in timeline.lanes if lane.name in ("ready", "copy", "step")]
    workers = [lane for lane in timeline.lanes if lane not in others]
    return [*workers[:_MOST_WORKERS], *others], max(0, len(workers) - _MOST_WORKERS)
