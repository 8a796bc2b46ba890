"""`feedline doctor`: check a machine for data-loading problems, or all images of a dataset."""

from __future__ import annotations

import contextlib
import io
import posixpath
import sys
import time
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feedline.cli import options
from feedline.cli.output import complain, echo, print_line, use_folder, write_json
from feedline.errors import UsageError
from feedline.text import format_table, shell_command

if TYPE_CHECKING:
    from feedline.profile.doctor_machine import CheckResult

_FOUND_FAULT = 1

# A sign, one for terminals that have only ASCII, a word, a colour.
_MARKS = {
    "ok": ("\u2713", "+", "ok", "green"),
    "note": ("\u00b7", "-", "note", "cyan"),
    "warn": ("!", "!", "warn", "yellow"),
    "fail": ("\u2717", "x", "fail", "red"),
    "unknown": ("?", "?", "not measured", "bright_black"),
}
_WORD_WIDTH = max(len(word) for _, _, word, _ in _MARKS.values())


def doctor(
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR", help="Class folders of images, a folder with train/, or a cache."
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option(help="Also time copies to the GPU; imports torch.")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="Decode all images of DIR instead; list broken files.")
    ] = False,
    workers: options.Workers = None,
    json: options.JsonFile = None,
) -> None:
    """Check this machine for data-loading problems.

    One line each for cores, memory, limits, threads, decoder, disk, GPU and torch, then settings to
    start with. With DIR, reads some of its files for half a second. Exit status 1 if a check warns
    or fails, or if an image is broken.

    Example: feedline doctor demo-data
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may not be encodable
        sys.stdout.reconfigure(errors="backslashreplace")
    if not verify:
        _check_machine(folder, measure, json)
        return
    if folder is None or measure:
        raise UsageError("--verify needs DIR, and no --measure")
    _verify(folder, options.parse_workers(workers), json)


def _check_machine(folder: str | None, measure: bool, json: Path | None) -> None:
    started = time.monotonic()

    from feedline import __version__
    from feedline.cache.source import list_splits
    from feedline.profile.doctor import (
        CHECK_IDS,
        DEADLINE_S,
        NoAnswerError,
        answer_within,
        examine,
    )
    from feedline.sources.remote_filesystem import is_url

    if folder is not None and not is_url(folder):
        named = folder
        with contextlib.suppress(NoAnswerError):  # a check reports it
            splits = answer_within(DEADLINE_S, lambda: list_splits(named))
            folder = use_folder(named, posixpath.join(named, *splits[:1]))
    width = max(map(len, CHECK_IDS))
    found = examine(folder, measure=measure, tell=partial(_print_check, width))
    seconds = time.monotonic() - started
    rows = [(setting.name, str(setting.value), setting.reason) for setting in found.settings]
    echo("", "Settings to start with on this machine:", *format_table(rows), "")
    counts = Counter(_MARKS[result.status][2] for result in found.checks.values())
    words = (f"{counts[word]} {word}" for _, _, word, _ in _MARKS.values() if counts[word])
    echo(f"{len(found.checks)} checks in {seconds:.2f} s: {', '.join(words)}")
    results = {
        "feedline": __version__,
        "folder": folder,
        "measured": measure,
        "seconds": round(seconds, 3),
        "checks": [{"id": name, **asdict(result)} for name, result in found.checks.items()],
        "settings": list(map(asdict, found.settings)),
    }
    write_json(json, results)
    if any(result.is_fault for result in found.checks.values()):
        raise typer.Exit(_FOUND_FAULT)


def _print_check(width: int, name: str, result: CheckResult) -> None:
    """Print one line for a check, and one for its fix."""
    from rich.console import Console

    sign, ascii_sign, word, colour = _MARKS[result.status]
    mark = f"{ascii_sign if Console().options.ascii_only else sign} {word}"
    print_line((mark.ljust(_WORD_WIDTH + 2), colour), f"  {name.ljust(width)}  {result.summary}")
    if result.fix:
        print_line(f"{'fix:'.rjust(_WORD_WIDTH + width + 4)}  {result.fix}")


def _verify(folder: str, workers: int | str, json: Path | None) -> None:
    """Decode all images below a folder and list those that cannot be read."""
    from feedline.cache.damage import broken_images
    from feedline.cli.progress import ProgressBar
    from feedline.images.image_list import find_images
    from feedline.sources.manifest import is_cache

    if is_cache(folder):
        command = f"feedline cache verify {shell_command(folder)} --decode"
        raise UsageError(f"{folder} is a cache", hint=command)
    started = time.monotonic()
    files = find_images([Path(folder)])
    with ProgressBar("images") as bar:
        broken = broken_images(files, workers=workers, progress=bar.update)
    seconds = time.monotonic() - started
    echo(f"{folder}: {len(broken)} of {len(files)} images cannot be read ({seconds:.1f} s)")
    for path, reason in broken:
        echo(f"{path}: {reason}")
    found = {"broken": [{"file": str(path), "reason": reason} for path, reason in broken]}
    about = {"folder": folder, "images": len(files)}
    write_json(json, {**about, **found, "seconds": round(seconds, 3)})
    if broken:
        complain("replace or remove them, or train with --on-error skip", "hint")
        raise typer.Exit(_FOUND_FAULT)
