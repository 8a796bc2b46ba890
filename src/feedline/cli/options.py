"""Options that commands share: one name, one meaning and one help text everywhere.

A parameter of a command is `Annotated` with a type of this module. Names are timm's if timm has
the option.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

from feedline.cli.output import is_replaceable
from feedline.errors import UsageError

__all__ = [
    "DATA",
    "DEVICE",
    "LOADER",
    "MEASUREMENT",
    "OUTPUT",
    "SCHEDULE",
    "Amp",
    "AmpDtype",
    "BatchSize",
    "CacheFolder",
    "Device",
    "HtmlFile",
    "ImageSize",
    "Images",
    "JsonFile",
    "OnError",
    "SettingsFile",
    "SvgFile",
    "Workers",
    "panel",
    "parse_auto",
    "parse_sizes",
    "parse_workers",
]

LOADER, DEVICE, DATA = "Loading", "Device", "Data"
SCHEDULE = "SIZExEPOCHS[@N],..."
MEASUREMENT, OUTPUT = "Measurement", "Output"


def panel(title: str) -> Callable[..., Any]:
    """Return a function that makes options of one panel of the help.

    `default` is shown (True: the actual one); `names` are needed if there are several.
    """

    def option(
        help: str, metavar: str = "", default: str | bool = False, *names: str, **more: Any
    ) -> Any:
        if isinstance(default, str):  # typer would put it in parentheses
            help, default = f"{help} [dim]\\[default: {default}][/dim]", False
        return typer.Option(
            *names, help=help, metavar=metavar, show_default=default, rich_help_panel=title, **more
        )

    return option


def _writable(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Check, before the work, that a file can be written."""
    if path is None or (not is_replaceable(path) and os.access(path, os.W_OK)):
        return path
    problem = "it is a folder" if path.is_dir() else ""
    if not problem:
        from feedline.sources.files import partial_path  # loads numpy

        # os.access is not enough: it says yes to root about every file of /proc.
        partial = partial_path(path)
        try:
            partial.touch()
            partial.unlink()
        except OSError as error:
            problem = f"{path.absolute().parent}: {error.strerror}"
    if problem:
        raise UsageError(f"{option.opts[0]} {path} cannot be written: {problem}")
    return path


_loader, _device, _output = panel(LOADER), panel(DEVICE), panel(OUTPUT)


def _file(help: str) -> Any:
    return _output(help, "FILE", callback=_writable)


JsonFile: TypeAlias = Annotated[Path | None, _file("Write the results as JSON.")]
HtmlFile: TypeAlias = Annotated[Path | None, _file("Write the report as a web page.")]
SvgFile: TypeAlias = Annotated[Path | None, _file("Write the chart as SVG.")]
SettingsFile: TypeAlias = Annotated[
    Path | None, _file("Write the settings for DataLoader(settings=FILE).")
]

Images: TypeAlias = Annotated[
    Path, typer.Argument(metavar="DIR", help="Class folders of images, or a folder with train/.")
]
ImageSize: TypeAlias = Annotated[int, _loader("Image size in pixels.", "PX", True)]
BatchSize: TypeAlias = Annotated[
    int, _loader("Images in a batch.", "N", True, "--batch-size", "-b")
]
Workers: TypeAlias = Annotated[
    str | None, _loader("Loader processes; 0: none.", "N|auto", "auto", "--workers", "-j")
]
OnError: TypeAlias = Annotated[
    Literal["raise", "skip"] | None,
    _loader("Images that cannot be decoded.", "raise|skip", "raise"),
]
CacheFolder: TypeAlias = Annotated[Path | None, _loader("Cache of resized copies.", "DIR")]
Device: TypeAlias = Annotated[
    str | None, _device("cuda, mps, xpu or cpu.", "NAME", "cuda if available")
]
Amp: TypeAlias = Annotated[bool | None, _device("Mixed precision.", "", "on a GPU")]
AmpDtype: TypeAlias = Annotated[
    Literal["bfloat16", "float16"] | None,
    _device("Mixed-precision dtype.", "bfloat16|float16", "by GPU"),
]


def parse_workers(text: str | None) -> int | Literal["auto"]:
    """Parse `--workers`; None means "auto"."""
    return parse_auto(text or "auto", "--workers", least=0)


def parse_auto(text: str, option: str, *, least: int) -> int | Literal["auto"]:
    """Parse a whole number or "auto" (UsageError, which names the option)."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or int(text) < least:
        expected = f"'auto' or a whole number of at least {least}"
        raise UsageError(f"{option} must be {expected}, got {text!r}")
    return int(text)


def parse_sizes(text: str) -> list[int]:
    """Parse `--sizes`: pixels, comma separated."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--sizes must be pixels, comma separated, such as 128,192,256, got {text!r}"
        ) from None
