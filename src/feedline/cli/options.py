"""Options that commands share: one name, one meaning and one help text everywhere.

A parameter of a command is `Annotated` with a type of this module. Names are timm's if timm has
the option.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import typer

from feedline.cli.output import STDOUT, is_replaceable
from feedline.errors import UsageError
from feedline.system import long_path_problem, refuse_unusable_path

_Command = TypeVar("_Command", bound=Callable[..., None])

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


def with_settings(*settings: type) -> Callable[[_Command], _Command]:
    """Return a decorator: a command gets an option for each `setting` of some dataclasses.

    Their values are keyword arguments, None if not given. Panels have the order of the settings;
    the command's own options are at the end of a panel, because they come last.
    """
    made = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_plain(hints[field.name]) | None, _setting_option(field)],
        )
        for each in settings
        for hints in [get_type_hints(each)]
        for field in fields(each)
        if "option" in field.metadata
    ]

    def decorate(command: _Command) -> _Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        found = [each for each in own if each.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*made, *found)]
        command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in options}
        return command

    return decorate


def plain_type(annotation: Any) -> Any:
    """Return the type of a parameter, without its option."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def _setting_option(field: Any) -> Any:
    title, help, metavar, shown, names = field.metadata["option"]
    return panel(title)(help, metavar, shown or False, *names)


def _plain(hint: Any) -> Any:
    """Return the first type of a union; text for literals, which are checked later."""
    plain = hint if get_origin(hint) in (None, Literal) else get_args(hint)[0]
    return str if get_origin(plain) is Literal else plain


def _writable(
    context: typer.Context, option: typer.CallbackParam, path: Path | None
) -> Path | None:
    """Check, before the work, that a file can be written; for "-", print text to stderr."""
    if path == STDOUT:
        if sys.stdout is sys.stderr:
            raise UsageError(f"{option.opts[0]} -: another option writes to stdout")
        context.with_resource(contextlib.redirect_stdout(sys.stderr))
        return path
    if path is None or (not is_replaceable(path) and os.access(path, os.W_OK)):
        return path
    refuse_unusable_path(path)
    problem = "it is a folder" if path.is_dir() else ""
    if not problem:
        from feedline.sources.files import partial_path  # loads numpy

        # os.access is not enough: it says yes to root about every file of /proc.
        partial = partial_path(path)
        try:
            partial.touch()
            partial.unlink()
        except OSError as error:
            why = long_path_problem(partial) or error.strerror
            problem = f"{path.absolute().parent}: {why}"
    if problem:
        raise UsageError(f"{option.opts[0]} {path} cannot be written: {problem}")
    return path


_loader, _device, _output = panel(LOADER), panel(DEVICE), panel(OUTPUT)


def _file(help: str) -> Any:
    return _output(help, "FILE", callback=_writable)


JsonFile: TypeAlias = Annotated[Path | None, _file("Write the results as JSON; - for stdout.")]
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
