"""Output of all commands: tables on stdout, messages on stderr, and files.

Guarantees: 100 columns, or fewer in a narrower terminal; no colour with NO_COLOR; control
characters, and those that the stream cannot encode, are escaped, so names of files and classes
neither control the terminal nor pass for a line of feedline. A file is written completely or not at
all. A pipe, device or link such as /dev/stdout is written to, not replaced. If a file is "-", it
alone is on stdout, and tables are on stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from feedline.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

STDOUT = Path("-")
"""Name of a file that is written to stdout."""

_COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "cyan", "hint": "cyan"}


def echo(*lines: str, err: bool = False) -> None:
    """Print lines to stdout or stderr; a line break within one is escaped."""
    _write("\n".join(map(printable, lines)), err=err)


def echo_skipped(path: str, reason: str, times: int = 1, *, err: bool = False) -> None:
    """Print an image that could not be decoded, and how often if more than once."""
    often = "" if times == 1 else f" {times} times"
    echo(f"skipped{often}: {reason if path in reason else f'{path}: {reason}'}", err=err)


def echo_row(*cells: str) -> None:
    """Print a row of TSV to stdout; a tab within a cell is escaped."""
    _write("\t".join(map(printable, cells)))


def echo_text(text: str, *, err: bool = False) -> None:
    """Print a text of several lines, such as a table, to stdout or stderr."""
    echo(*text.split("\n"), err=err)


def _write(text: str, *, err: bool = False) -> None:
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def complain(message: str, label: str = "", hint: str = "") -> None:
    """Print `label: message`, and `hint: ...` on a line of its own, to stderr.

    Further lines of the message are indented, as a name in it may look like a label.
    """
    first, *more = message.split("\n")
    print_line(*_labelled(label, first), err=True)
    for line in more:
        print_line(f"  {line}".rstrip(), err=True)
    if hint:
        print_line(*_labelled("hint", hint), err=True)


def _labelled(label: str, text: str) -> tuple[str | tuple[str, str], ...]:
    return ((f"{label}: ", _COLOURS.get(label, "")), text) if label else (text,)


def print_line(*parts: str | tuple[str, str], err: bool = False) -> None:
    """Print a line of texts and of (text, style) pairs; styles are for terminals."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=err, highlight=False, soft_wrap=True, emoji=False)
    safe = ((each, "") if isinstance(each, str) else each for each in parts)
    console.print(Text.assemble(*((printable(text), style) for text, style in safe)))


def say(view: RenderableType) -> None:
    """Print a view, whose names are printable, to stdout."""
    from feedline.profile.terminal import make_console

    console = make_console()
    with console.capture() as captured:
        console.print(view)
    lines = (line.rstrip() for line in captured.get().split("\n"))
    _write("\n".join(lines).rstrip("\n"))


def use_folder(named: str | os.PathLike[str], used: str | os.PathLike[str]) -> str:
    """Return the folder or URL to read, and print a note if it is not the one that was named."""
    if os.fspath(named) != os.fspath(used):
        complain(f"using {used}, the training images of {named}", "note")
    return os.fspath(used)


def write_json(path: Path | None, payload: Mapping[str, Any]) -> None:
    """Write `payload` to `path` in one step; do nothing for None. ValueError for NaN."""
    if path is not None:
        write_text(path, json.dumps(payload, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8 in one step; characters that UTF-8 cannot encode are escaped."""
    from feedline.sources.files import write_atomic  # loads numpy

    data = text.encode("utf-8", "backslashreplace")
    if path == STDOUT and sys.__stdout__ is not None:
        sys.__stdout__.buffer.write(data)
        sys.__stdout__.flush()
    elif is_replaceable(path):
        write_atomic(path, data, durable=False)
    else:
        path.write_bytes(data)


def is_replaceable(path: Path) -> bool:
    """Return False if `path` is a link, a pipe or a device, which must not be replaced."""
    return not path.exists() or path.is_dir() or (path.is_file() and not path.is_symlink())
