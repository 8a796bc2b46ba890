"""torchvision's RandomErasing, written into memory that nobody else holds.

Guarantees: the step draws and erases by its own code and is not changed; steps of other kinds are
given back as they are.

Relies on: the caller, who knows that the values are in nobody else's hands; on a step's `inplace`
being all that tells the two ways apart. timm's step of this name writes in place by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

__all__ = ["in_place"]


def in_place(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The step, or one that does the same without a copy of its input.

    Args:
        step: of torchvision's, unaltered; or any other.
    """
    kind = type(step)
    if kind.__name__ != "RandomErasing" or not kind.__module__.startswith("torchvision."):
        return step
    # Made anew each time, as what its owner sets on the step is to be followed.
    other: Any = copy.copy(step)
    other.inplace = True
    made: Callable[[Any], Any] = other
    return made
