"""A file's text with feedline's DataLoader wherever it has torch's."""

from __future__ import annotations

import re

__all__ = ["swapped"]

_OURS = '__import__("feedline").DataLoader'
_IMPORT = re.compile(
    r"^([ \t]*)from torch\.utils\.data(?:\.dataloader)? import (\([^)]*\)|[^\n]*)", re.MULTILINE
)


def swapped(text: str) -> str:
    """The text with the class swapped, in its imports and where it is named in full."""

    def from_feedline(found: re.Match[str]) -> str:
        space, names = found[1], re.findall(r"\w+(?: as \w+)?", found[2])
        ours = [name for name in names if name.split()[0] == "DataLoader"]
        if not ours:
            return found[0]
        theirs = [name for name in names if name not in ours]
        lines = [f"{space}from feedline import {', '.join(ours)}"]
        lines += [f"{space}from torch.utils.data import {', '.join(theirs)}"] if theirs else []
        return "\n".join(lines)

    text = _IMPORT.sub(from_feedline, text)
    # Not in a message, which names it between backticks.
    return re.sub(r"(?<![`\w.])torch\.utils\.data\.DataLoader\b", _OURS, text)
