"""Some steps as events, with what the workers did meanwhile."""

from __future__ import annotations

from feedline.trace.pass_record import Cycle
from feedline.trace.run import Event, Excerpt

__all__ = ["excerpt"]


def excerpt(
    why: str, cycles: list[Cycle], tasks: dict[int, list[tuple[int, int]]], run_begun_ns: int
) -> Excerpt | None:
    """The events of some steps; None where there are no steps.

    Args:
        why: as `run.Excerpt` has it.
        cycles: the steps, oldest first.
        tasks: of the workers, by seat: begin and end in ns.
        run_begun_ns: when the run began, on the monotonic clock.
    """
    if not cycles:
        return None
    begun_ns, ended_ns = cycles[0][1], cycles[-1][3]
    events = []

    def event(lane: str, stage: str, begin_ns: int, end_ns: int, batch: int = -1) -> None:
        begin_ms, end_ms = (begin_ns - begun_ns) / 1e6, (end_ns - begun_ns) / 1e6
        events.append(
            Event(lane=lane, stage=stage, begun_ms=begin_ms, ended_ms=end_ms, batch=batch)
        )

    for number, ready_ns, asked_ns, got_ns in cycles:
        event("step", "compute", ready_ns, asked_ns, number - 1)
        event("step", "wait", asked_ns, got_ns, number)
    for seat, own in sorted(tasks.items()):
        for task_begun_ns, task_done_ns in own:
            if task_done_ns > begun_ns and task_begun_ns < ended_ns:
                event(f"worker {seat}", "make", max(task_begun_ns, begun_ns), task_done_ns)
    return Excerpt(why=why, begun_s=(begun_ns - run_begun_ns) / 1e9, events=events)
