"""What every command says and writes: messages on stderr, and the files of `--json` and the like.

Guarantees: a file is there whole or not at all; where it cannot be written, that is said before
the work and not after it. A pipe, a device or a link, as /dev/stdout is, is written to and not
replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.errors import UsageError

__all__ = [
    "HtmlFile",
    "JsonFile",
    "SettingsFile",
    "SvgFile",
    "complain",
    "write_json",
    "write_text",
]


def _writable(option: typer.CallbackParam, path: Path | None) -> Path | None:
    if path is None or (_is_kept(path) and os.access(path, os.W_OK)):
        return path
    folder = path.absolute().parent
    problem = "it is a folder" if path.is_dir() else ""
    if not problem:
        # Tried, and not only asked for: /proc lets root do anything but that.
        partial = _partial(path)
        try:
            partial.touch()
            partial.unlink()
        except OSError as error:
            problem = f"{folder} is no folder one can write to ({error.strerror})"
    if problem:
        raise UsageError(
            f"{option.opts[0]} {path}: cannot write there, {problem}; name a file elsewhere"
        )
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="Write the results to FILE as JSON.", callback=_writable
    ),
]

HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", help="Write the report to FILE as one page.", callback=_writable
    ),
]
SvgFile = Annotated[
    Path | None,
    typer.Option(
        "--svg", metavar="FILE", help="Write the pictures to FILE as SVG.", callback=_writable
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--save",
        metavar="FILE",
        help="Write the settings to FILE, for DataLoader(settings=FILE).",
        callback=_writable,
    ),
]


def complain(message: str, *, label: str = "error: ") -> None:
    """Print one message to stderr, its label in red where stderr is a terminal."""
    typer.echo(typer.style(f"feedline: {label}", fg="red", bold=True) + message, err=True)


def write_json(path: Path | None, payload: Mapping[str, Any]) -> None:
    """Write `payload` to `path`, replacing a file in one step; do nothing for None.

    Raises:
        ValueError: a value is NaN or infinite, which JSON cannot say.
    """
    if path is not None:
        write_text(path, json.dumps(payload, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, replacing a file in one step; what is no text in it is spelt."""
    data = text.encode("utf-8", "backslashreplace")
    if _is_kept(path):
        path.write_bytes(data)
        return
    partial = _partial(path)
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _partial(path: Path) -> Path:
    """Where a file is written before it takes its name."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def _is_kept(path: Path) -> bool:
    """Whether something is there that is no file of its own: to replace it would do harm."""
    return path.exists() and not path.is_dir() and (path.is_symlink() or not path.is_file())
