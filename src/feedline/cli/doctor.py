"""`feedline doctor`: what this machine gives a training, and what is in the way.

Imports torch only where `--measure` copies to a GPU.
"""

from __future__ import annotations

import io
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from feedline.cli.output import JsonFile, write_json
from feedline.cli.train_folder import train_folder

if TYPE_CHECKING:
    from rich.console import Console

    from feedline.doctor.check import CheckResult
    from feedline.doctor.examine import StartingSetting

__all__ = ["doctor"]

_FOUND_FAULT = 1

# A sign, one for terminals that have no more than ASCII, a word, a colour.
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
            metavar="DIR", help="The folder of your images, or train/ with those, or a cache."
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Take seconds: import torch, pin memory, copy to the GPU."),
    ] = False,
    json: JsonFile = None,
) -> None:
    """Look at what this machine gives a training, and say what is in the way.

    Cores, memory, limits, threads, decoder, disk, GPU and torch: one line
    each, and settings to begin with. Some files of DIR are read for half a
    second. Exit status 1 where a check warns or fails.

    Example: feedline doctor demo-data/train --json doctor.json
    """
    started = time.monotonic()

    from rich.console import Console

    from feedline import __version__
    from feedline.doctor.check import found_fault, run_with_deadline
    from feedline.doctor.examine import CHECK_IDS, examine
    from feedline.stores.splits import splits_below

    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may be in no encoding's reach
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console(highlight=False, markup=False, soft_wrap=True, emoji=False)
    width = max(map(len, CHECK_IDS))
    if folder is not None:
        named, splits = folder, list[str]()  # empty if the disk does not answer in time
        run_with_deadline(lambda: splits.extend(splits_below(named)))
        folder = train_folder(named, splits)
    found = examine(folder, measure=measure, tell=lambda check: _say(console, check, width))
    seconds = time.monotonic() - started
    console.print()
    _say_settings(console, found.settings)
    console.print()
    counts = {
        word: sum(check.status == status for check in found.checks)
        for status, (_, _, word, _) in _MARKS.items()
    }
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    console.print(f"{len(found.checks)} checks in {seconds:.2f} s: {said}")
    write_json(
        json,
        {
            "feedline": __version__,
            "folder": folder,
            "measured": measure,
            "seconds": round(seconds, 3),
            "checks": [asdict(check) for check in found.checks],
            "settings": [asdict(setting) for setting in found.settings],
        },
    )
    if found_fault(found.checks):
        raise typer.Exit(_FOUND_FAULT)


def _say(console: Console, check: CheckResult, width: int) -> None:
    """One line for a check, and one for its remedy."""
    from rich.text import Text

    sign, plain, word, colour = _MARKS[check.status]
    mark = f"{sign if _shows(console, sign) else plain} {word}".ljust(_WORD_WIDTH + 2)
    console.print(Text.assemble((mark, colour), f"  {check.id.ljust(width)}  {check.summary}"))
    if check.fix:
        console.print(Text(f"{'fix:'.rjust(_WORD_WIDTH + width + 4)}  {check.fix}"))


def _say_settings(console: Console, settings: tuple[StartingSetting, ...]) -> None:
    from rich.text import Text

    console.print("To begin with on this machine:")
    names = max(len(setting.name) for setting in settings)
    values = max(len(str(setting.value)) for setting in settings)
    for setting in settings:
        name, value = setting.name.ljust(names), str(setting.value).ljust(values)
        console.print(Text(f"  {name}  {value}  {setting.reason}"))


def _shows(console: Console, sign: str) -> bool:
    """Whether the screen has a sign, by its encoding."""
    try:
        sign.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
