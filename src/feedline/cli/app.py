"""The `feedline` command.

Guarantees: exit status 0 fine, 1 failed on the way, a finding or a failed check, 2 wrong use (also
where the machine lacks what was asked for), 3 inconclusive, 130 or 143 after Ctrl-C or SIGTERM.
What feedline raises on purpose ends a command with one message on stderr; the traceback is shown
with `--debug` or FEEDLINE_DEBUG=1. `finally` blocks run on SIGTERM too, so no command leaves half
a file.
Relies on: each command importing torch, timm and the rest of feedline only when it runs, so that
`feedline --help` takes a fraction of a second.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from feedline import __version__
from feedline.cli.bench import bench
from feedline.cli.cache import cache
from feedline.cli.check import check
from feedline.cli.demo_data import demo_data
from feedline.cli.doctor import doctor
from feedline.cli.evaluate import evaluate, export, predict
from feedline.cli.explain_overlap import explain_overlap
from feedline.cli.option_names import in_options, options_of
from feedline.cli.output import complain
from feedline.cli.report import report
from feedline.cli.train import train
from feedline.cli.tune import tune
from feedline.cli.warned import warnings_said
from feedline.errors import FeedlineError, ResourceError, UsageError

__all__ = ["app", "main"]

_WRONG_USE = 2
_FAILED = 1
_ARGUMENTS = "feedline.arguments"  # in the context


class _Commands(TyperGroup):
    """Turns what feedline raises into one message and an exit status, for every command."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Reads the options before the command's name; Ctrl-C may come meanwhile."""
        arguments = list(args)  # click empties the list
        try:
            context = super().make_context(info_name, args, *more, **extra)
            context.meta[_ARGUMENTS] = arguments
            return context
        except KeyboardInterrupt:
            complain("interrupted", label="")
            raise typer.Exit(130) from None

    def invoke(self, ctx: Any) -> Any:
        # Typer would swallow KeyboardInterrupt with no word about it, so it is met here, inside.
        debug = ctx.params.get("debug") or os.environ.get("FEEDLINE_DEBUG", "") not in ("", "0")

        def said(message: str) -> str:
            return in_options(message, options_of(self, ctx.meta[_ARGUMENTS]))

        try:
            with warnings_said(said):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            complain("interrupted", label="")
            raise typer.Exit(130) from None
        except FeedlineError as error:
            if debug:
                raise
            complain(said(str(error)))
            wrong_use = isinstance(error, UsageError | ResourceError)
            raise typer.Exit(_WRONG_USE if wrong_use else _FAILED) from None
        except OSError as error:
            # The disk is full, a folder may not be written, ...: the machine's matter, no bug.
            if debug or isinstance(error, BrokenPipeError):
                raise
            complain(f"{error}. Run again with --debug to see where")
            raise typer.Exit(_FAILED) from None


app = typer.Typer(
    cls=_Commands,
    name="feedline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", no_args_is_help=True)(train)
app.command("evaluate", no_args_is_help=True)(evaluate)
app.command("predict", no_args_is_help=True)(predict)
app.command("export", no_args_is_help=True)(export)
app.command("bench", no_args_is_help=True)(bench)
app.command("tune", no_args_is_help=True)(tune)
app.command("report", no_args_is_help=True)(report)
app.command("check", no_args_is_help=True)(check)
app.command("explain-overlap")(explain_overlap)
app.command("demo-data", no_args_is_help=True)(demo_data)
app.command("doctor")(doctor)
app.add_typer(cache, name="cache")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"feedline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (FEEDLINE_DEBUG=1 too).")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Keep the GPU fed while you train vision models with PyTorch.

    Example: feedline demo-data demo-data && feedline train demo-data
    """


def _leave(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit status.

    Args:
        argv: the arguments without the program's name; None takes the process's own.
    """
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        app(args=None if argv is None else list(argv), prog_name="feedline")
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main()
