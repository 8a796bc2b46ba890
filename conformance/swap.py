"""A file's text with feedline's DataLoader wherever it has torch's."""

from __future__ import annotations

import ast
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

    return _with_full_names_swapped(_IMPORT.sub(from_feedline, text))


def _with_full_names_swapped(text: str) -> str:
    """The text with the class swapped where it is named in full, but not in strings."""
    lines = text.splitlines(keepends=True)
    places = [
        (node.lineno - 1, node.col_offset, node.end_lineno - 1, node.end_col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.utils.data.DataLoader"
    ]
    for first, start, last, end in sorted(places, reverse=True):
        if first == last:
            line = lines[first].encode()  # offsets count bytes
            lines[first] = (line[:start] + _OURS.encode() + line[end:]).decode()
    return "".join(lines)
