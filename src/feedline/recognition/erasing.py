"""torchvision's RandomErasing without a copy of its input.

Guarantees: the step draws and erases with its own code and is not changed; other steps are returned
unchanged.

Relies on: the caller, who knows that no other code uses the input, and that its elements do not
share memory; on the step's attribute `inplace`. timm's RandomErasing always works in place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

__all__ = ["in_place"]


def in_place(step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the step, or an equivalent one without a copy of its input.

    Args:
        step: an unmodified step of torchvision, or any other.
    """
    kind = type(step)
    if kind.__name__ != "RandomErasing" or not kind.__module__.startswith("torchvision."):
        return step
    # A new copy each time: what the user sets on the step later counts, too.
    other: Any = copy.copy(step)
    other.inplace = True
    return cast(Callable[[Any], Any], other)
