"""Replace torch's DataLoader with feedline's in a source file."""

from __future__ import annotations

import ast
import re

__all__ = ["swap_loader_class"]

_FEEDLINE_CLASS = '__import__("feedline").DataLoader'
_IMPORT = re.compile(
    r"^([ \t]*)from torch\.utils\.data(?:\.dataloader)? import (\([^)]*\)|[^\n]*)", re.MULTILINE
)


def swap_loader_class(text: str) -> str:
    """Text with the class swapped, in imports and fully qualified names."""

    def from_feedline(match: re.Match[str]) -> str:
        space, names = match[1], re.findall(r"\w+(?: as \w+)?", match[2])
        feedline_names = [name for name in names if name.split()[0] == "DataLoader"]
        if not feedline_names:
            return match[0]
        torch_names = [name for name in names if name not in feedline_names]
        lines = [f"{space}from feedline import {', '.join(feedline_names)}"]
        lines += (
            [f"{space}from torch.utils.data import {', '.join(torch_names)}"] if torch_names else []
        )
        return "\n".join(lines)

    return _swap_qualified_names(_IMPORT.sub(from_feedline, text))


def _swap_qualified_names(text: str) -> str:
    """Text with the class swapped in fully qualified names, except in strings."""
    lines = text.splitlines(keepends=True)
    places = [
        (node.lineno - 1, node.col_offset, node.end_lineno - 1, node.end_col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.utils.data.DataLoader"
    ]
    for first, start, last, end in sorted(places, reverse=True):
        if first == last:
            line = lines[first].encode()  # offsets count bytes
            lines[first] = (line[:start] + _FEEDLINE_CLASS.encode() + line[end:]).decode()
    return "".join(lines)
