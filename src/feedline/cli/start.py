"""Entry point of the `feedline` command: handles Ctrl-C while the command itself is imported.

Relies on: this file and the packages it lies in import nothing that takes time.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status; see `app.main`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] == ["run"] and len(arguments) > 1:
            _start_program(arguments[1:])
        from feedline.cli.app import main as run

        run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


def _start_program(target: Sequence[str]) -> None:
    """Start the program of `feedline run` without options. Returns if it has some, or on an error.

    The command line, which then handles them, takes 0.2 s to import.
    """
    if target[0].startswith("-") and target[0] != "-m":
        return
    from feedline.errors import FeedlineError
    from feedline.running.launch import PatchSettings, start_program

    with contextlib.suppress(FeedlineError, OSError):
        start_program(target, PatchSettings())
