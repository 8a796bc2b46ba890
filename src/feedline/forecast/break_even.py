"""Which steps a loader keeps up with, where nothing is known yet of the steps."""

from __future__ import annotations

from collections.abc import Sequence

from feedline.forecast.rates import Rates

__all__ = ["break_even"]


def break_even(measured: Sequence[Rates]) -> str:
    """From which step on nothing waits, in a sentence: of what is known before any step.

    Args:
        measured: of each phase what a batch takes.
    """
    said = dict.fromkeys(
        f"{each.now.step_ms:.{1 if each.now.step_ms < 9.95 else 0}f} ms "
        + (f"at {each.size} px " if each.size else "")
        + f"(batches of {each.rows:.0f})"
        for each in measured
    )
    crew = measured[0].now.load.workers
    if not crew:
        return f"without workers each step waits for {', '.join(said)}"
    keep = "worker keeps" if crew == 1 else "workers keep"
    text = f"{crew} {keep} up with steps of at least {', '.join(said)}"
    first, last = (end(measured, key=lambda each: each.size or 0) for end in (min, max))
    if first.size and last.size and first.size < last.size:
        steps = (last.size / first.size) ** 2
        made = first.per_s(first.now.step_ms) / last.per_s(last.now.step_ms)
        text += (
            f"; where a step's time goes with the pixels, it takes {steps:.1f} times the images at "
            f"{first.size} px as at {last.size} px, and {made:.1f} times as many are made"
        )
    return text
