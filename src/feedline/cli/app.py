"""The `feedline` command.

Guarantees: exit status 0 for success, 1 for a failure, a finding or a failed check, 2 for wrong use
(also if the machine lacks what was requested), 3 for an inconclusive result, 130, 143 or 129 after
Ctrl-C, SIGTERM or SIGHUP. An error of feedline is printed as `error:` and `hint:` lines; `--debug`
or FEEDLINE_DEBUG=1 shows the traceback. `finally` blocks run on these signals, too, so no command
leaves half a file.
Relies on: commands import torch, timm and the rest of feedline only when they run, so that
`feedline --help` takes a fraction of a second.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

import feedline
from feedline.cli import options
from feedline.cli.bench import bench
from feedline.cli.cache import add_size, build, info, plan, repair, verify
from feedline.cli.demo_data import demo_data
from feedline.cli.doctor import doctor
from feedline.cli.evaluate import evaluate, export, predict
from feedline.cli.output import complain, echo
from feedline.cli.report import check, explain_overlap, report
from feedline.cli.run import OPTIONS_FIRST, run
from feedline.cli.train import train
from feedline.cli.tune import tune
from feedline.errors import FeedlineError, ResourceError, UsageError, python_argument
from feedline.system import LONG_PATH_HINT, long_path_problem, signals_to_handle

_FAILED, _WRONG_USE, _INTERRUPTED = 1, 2, 130
# Arguments whose options have other names.
_OPTIONS = {
    "num_workers": "workers",
    "budget_s": "budget",
    "disk_bytes": "disk",
    "disk_bytes_per_s": "disk_speed",
}
# Options of timm and of other commands without an option of the same meaning here.
_HINTS = {
    "feedline train": {
        "data_dir": "name the folder without an option: `feedline train DIR`",
        "dataset": "name a folder of images: `feedline train DIR`",
        "num_classes": "each class is a folder of DIR/train",
        "color_jitter": "--aa rand and --aa trivial change colours, too",
        "amp_impl": "--amp uses torch's mixed precision",
        "bce_loss": "the loss is cross-entropy with --smoothing",
        "jsd_loss": "the loss is cross-entropy with --smoothing",
        "warmup_lr": "the warm-up begins at 1/25 of --lr",
        "min_lr": "--sched onecycle, cosine and linear end at 1/250000 of --lr",
        "decay_epochs": "--sched has no steps; use cosine, linear or onecycle",
        "mixup_off_epoch": "a phase of a --config file has its own mixup and cutmix",
        "hflip": "half of the images are mirrored, always",
        "model_ema": "--model-ema-decay 0.9998 turns it on",
        "channels_last": "it is always on",
        "pin_mem": "it is always on",
    },
    "feedline tune": {"image_size": "use --schedule 224x1"},
}
# Base class of the errors of a command line; newer versions of typer have click inside.
_ParseError: Any = typer.BadParameter.__bases__[0]


def _tidy(params: list[Any]) -> list[Any]:
    """Hide the type of flags, and the --no form of those that are off; put --help last."""
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
            if each.default is False:
                each.secondary_opts = []
    if len(params) > 1:
        params[-1].rich_help_panel = params[-2].rich_help_panel
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _tidy(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for each in self.get_params(ctx):  # in a column of their own they take the room of names
            if secondary := each.secondary_opts:
                each.help = f"{each.help} [dim]\\[off: {secondary[0]}][/dim]"
                each.secondary_opts = []
        super().format_help(ctx, formatter)


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _tidy(super().get_params(ctx))


def _group(name: str) -> typer.Typer:
    return typer.Typer(
        cls=_Group,
        name=name,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app, cache = _group("feedline"), _group("cache")


def _add(group: typer.Typer, panel: str | None, *functions: Callable[..., None]) -> None:
    for function in functions:
        group.command(
            function.__name__.replace("_", "-"),
            cls=_Command,
            context_settings=OPTIONS_FIRST if function is run else None,
            help=re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.getdoc(function) or ""),
            rich_help_panel=panel,
            no_args_is_help=function not in (doctor, explain_overlap),
        )(function)


_add(app, "Start", run, doctor, demo_data, train)
app.add_typer(cache, rich_help_panel="Data")
_add(app, "Data", bench, tune)
_add(app, "Understand", report, check, explain_overlap)
_add(app, "Use a model", evaluate, predict, export)
_add(cache, None, build, add_size, verify, repair, info, plan)


@cache.callback()
def _cache() -> None:
    """Build and check caches of resized copies: less to read and decode.

    Example: feedline cache build demo-data/train demo-cache --sizes 128,192,256
    """


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"feedline {feedline.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option(help="Show tracebacks; the same as FEEDLINE_DEBUG=1.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Keep the GPU fed while you train vision models with PyTorch.

    Example: feedline demo-data demo-data && feedline train demo-data
    """


def _exit(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


class _LogHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage(), record.levelname.lower())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line, by default that of the process, and exit with its status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    before = {each: signal.signal(each, _exit) for each in signals_to_handle("SIGTERM", "SIGHUP")}
    log, handler = logging.getLogger("feedline"), _LogHandler(logging.WARNING)
    log.addHandler(handler)
    warn = functools.cache(functools.partial(complain, label="warning"))  # each text once
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: warn(str(message))
            status = _run(arguments)
    finally:
        log.removeHandler(handler)
        for each, previous in before.items():
            signal.signal(each, previous)
    raise SystemExit(status)


def _run(arguments: list[str]) -> int:
    """Run a command, print its error, and return its exit status."""
    debug = os.environ.get("FEEDLINE_DEBUG", "") not in ("", "0") or "--debug" in arguments[:1]
    command = typer.main.get_command(app)
    try:
        # Not command.main(), which draws boxes around errors and swallows Ctrl-C.
        with command.make_context("feedline", arguments) as context:
            command.invoke(context)
        return 0
    except typer.Exit as error:
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted")
        return _INTERRUPTED
    except _ParseError as error:
        text, hint = _parse_error(error)
        if text:  # empty after the help was printed
            complain(text, "error", hint)
        return _WRONG_USE
    except FeedlineError as error:
        if debug:
            raise
        text, hint = error.parts(_spelling(command, arguments))
        complain(text, "error", hint)
        return _WRONG_USE if isinstance(error, UsageError | ResourceError) else _FAILED
    except BrokenPipeError:  # the reader of `feedline ... | head` has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED
    except OSError as error:  # the disk is full, a folder is read-only, ...: no bug
        if debug:
            raise
        if isinstance(error.filename, str) and (problem := long_path_problem(error.filename)):
            complain(f"{error.filename}: {problem}", "error", LONG_PATH_HINT)
        elif error.filename is None and not _has_working_directory():
            complain("the working directory was removed", "error", "change to another one")
        else:
            complain(str(error), "error", "--debug shows the traceback")
        return _FAILED


def _has_working_directory() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _parse_error(error: Any) -> tuple[str, str]:
    """Describe an error of the command line; "" after the help was printed. Add a hint."""
    from feedline.train.settings import SYNONYMS

    where = error.ctx.command_path if error.ctx else "feedline"
    hint = f"see `{where} --help`"
    text = error.format_message().rstrip(".")
    if name := getattr(error, "option_name", "").lstrip("-").replace("-", "_"):
        text = error.message.rstrip(".")
        option = f"--{SYNONYMS.get(name, '').replace('_', '-')}"
        params = error.ctx.command.params if error.ctx else ()
        if name in (hints := _HINTS.get(where, {})):
            hint = hints[name]
        elif any(option in each.opts for each in params):
            hint = f"use {option}"
        elif close := getattr(error, "possibilities", None):
            hint = f"close ones: {', '.join(close)}"
    return _value_error(error) or f"{text[:1].lower()}{text[1:]}", hint


def _value_error(error: Any) -> str:
    """Describe a value that is not a number or not one of the choices; "" for another error."""
    from feedline.train.recipe import Recipe, RunSettings
    from feedline.train.settings import allowed_values

    # The parser of newer versions of typer is pydantic; older ones only have a message.
    cause, param = error.__cause__, getattr(error, "param", None)
    found = re.match(r"'(.*)' is not", error.message)
    if param is None or param.nargs != 1 or not (hasattr(cause, "errors") or found):
        return ""
    value = cause.errors()[0]["input"] if found is None else found[1]
    owners = (Recipe, RunSettings) if error.ctx.command_path == "feedline train" else ()
    hints = [get_type_hints(each, include_extras=True) for each in owners]
    own = inspect.signature(error.ctx.command.callback, eval_str=True).parameters
    hints.append({name: options.plain_type(each.annotation) for name, each in own.items()})
    expected, _ = allowed_values(next(each[param.name] for each in hints if param.name in each))
    option = param.opts[0] if param.param_type_name == "option" else param.metavar
    return f"{option} must be {expected}, got {value!r}"


def _spelling(command: Any, arguments: list[str]) -> Callable[..., str]:
    """Return a function that writes arguments of Python as options of a command."""
    for each in arguments:
        command = getattr(command, "commands", {}).get(each, command)
    options = {option for parameter in command.params for option in parameter.opts}

    def spell(name: str, value: object = None) -> str:
        option = "--" + _OPTIONS.get(name, name).replace("_", "-")
        if option not in options:
            return python_argument(name, value)
        if isinstance(value, bool):
            return option if value else f"--no-{option[2:]}"
        return option if value is None else f"{option} {value}"

    return spell
