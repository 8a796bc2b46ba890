"""torchvision's RandomErasing without the copy that it makes of its input.

Guarantees: the step draws and erases by its own code and is not changed; steps of other kinds are
returned as they are.

Relies on: the caller, who knows that no other code uses the input, and that its elements do not
share memory; on the step's attribute `inplace`. timm's RandomErasing always works in place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

__all__ = ["in_place"]


def in_place(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The step, or one that does the same without a copy of its input.

    Args:
        step: of torchvision's, unaltered; or any other.
    """
    kind = type(step)
    if kind.__name__ != "RandomErasing" or not kind.__module__.startswith("torchvision."):
        return step
    # A new copy each time: what the user sets on the step later counts, too.
    other: Any = copy.copy(step)
    other.inplace = True
    return cast(Callable[[Any], Any], other)
