"""How far a rate that was measured over some time may be from the one of a longer time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev

from feedline.report.course import Stretch

__all__ = ["relative_spread"]

_BLOCKS = 10
_LEAST_BLOCKS = 4
# Student's t for 95%, by degrees of freedom.
_T = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def relative_spread(stretches: Sequence[Stretch]) -> float | None:
    """Half of the 95% interval of the mean rate, as a share of it; None where there is too little.

    Neighbouring stretches resemble one another, so the time is divided into ten blocks, whose
    means count as independent ("method of batch means").
    """
    known = [each for each in stretches if each.images_per_s is not None and each.seconds > 0]
    total_s = sum(each.seconds for each in known)
    images, seconds = [0.0] * _BLOCKS, [0.0] * _BLOCKS
    ended_s = 0.0
    for each in known:
        assert each.images_per_s is not None
        place = min(_BLOCKS - 1, int((ended_s + each.seconds / 2) / total_s * _BLOCKS))
        ended_s += each.seconds
        images[place] += each.images_per_s * each.seconds
        seconds[place] += each.seconds
    rates = [count / time for count, time in zip(images, seconds, strict=True) if time > 0]
    if len(rates) < _LEAST_BLOCKS:
        return None
    middle = mean(rates)
    if not middle > 0:
        return None
    return _T[len(rates) - 1] * stdev(rates) / math.sqrt(len(rates)) / middle
