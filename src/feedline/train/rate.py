"""The learning rate: one curve over the whole schedule, by the share of all samples seen.

A new image size is no new start: the weights stay, so the curve goes on. Starting a new cycle at
each stage throws the model back each time and is a common mistake with progressive resizing. As it
goes by samples and not by steps, phases of other batch sizes take the part of it that their images
are.

Guarantees: pure; within the curve's range, from the first sample to the last.
"""

from __future__ import annotations

import math

__all__ = ["rate_at"]

_FIRST, _LAST = 1 / 25, 1 / 25 / 10_000  # of the peak: OneCycleLR's own


def rate_at(seen: float, *, curve: str, warmup: float) -> float:
    """The learning rate as a share of its peak.

    Args:
        seen: of all samples of the schedule, 0 to 1.
        curve: "onecycle": up along half a cosine from 1/25, then down along one to 1/250,000 (Smith
            and Topin, "Super-convergence", 2018, as torch's OneCycleLR has it); "cosine": up
            linearly from 1/25, then down along half a cosine to the same end (Loshchilov and
            Hutter, "SGDR", 2016, without restarts); "linear": up and down linearly; "constant": up
            linearly, then level.
        warmup: the share of all samples over which it rises, 0 to below 1.
    """
    seen = min(1.0, max(0.0, seen))
    if seen < warmup:
        part = seen / warmup
        return _half_cosine(_FIRST, 1.0, part) if curve == "onecycle" else _line(_FIRST, 1.0, part)
    part = (seen - warmup) / (1.0 - warmup)
    if curve == "constant":
        return 1.0
    return _line(1.0, _LAST, part) if curve == "linear" else _half_cosine(1.0, _LAST, part)


def _line(begin: float, end: float, part: float) -> float:
    return begin + (end - begin) * part


def _half_cosine(begin: float, end: float, part: float) -> float:
    return end + (begin - end) * (1 + math.cos(math.pi * part)) / 2
