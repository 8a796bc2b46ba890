"""The `feedline` command from its first moment on: Ctrl-C while the command itself is still loaded.

Guarantees: it ends in one message and status 130 then, too. From there on `app` sees to it.
Relies on: this file and the packages it lies in importing nothing that takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit status; see `app.main`.

    Args:
        argv: the arguments without the program's name; None takes the process's own.
    """
    try:
        from feedline.cli.app import main as run

        run(argv)
    except KeyboardInterrupt:
        print("feedline: interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
