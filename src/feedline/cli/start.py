"""Entry point of the `feedline` command: handles Ctrl-C while the command itself is imported.

Relies on: this file and the packages it lies in import nothing that takes time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status; see `app.main`."""
    try:
        from feedline.cli.app import main as run

        run(argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
