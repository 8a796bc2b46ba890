"""`repr` that does not depend on memory addresses, so it is equal in every process."""

from __future__ import annotations

import re

__all__ = ["without_addresses"]


def without_addresses(text: str) -> str:
    """Remove the memory addresses from a repr."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
