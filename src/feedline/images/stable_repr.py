"""Objects in words that are the same in every process."""

from __future__ import annotations

import re

__all__ = ["without_addresses"]


def without_addresses(text: str) -> str:
    """A repr without the memory addresses that differ from process to process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
