"""Run the tests that do not depend on Linux, with pytest: python tools/portable_tests.py [OPTIONS]

Order, arithmetic, decoding, native code, compiled pipelines, sample stores and caches, and a loader
with spawned workers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FILES = (
    "order",
    "throughput",
    "images",
    "compile",
    "sources",
)


def main() -> None:
    """Run pytest, and exit with its status."""
    tests = Path(__file__).parents[1] / "tests"
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "not slow", *sys.argv[1:]]
    sys.exit(subprocess.run([*command, *(str(tests / name) for name in FILES)]).returncode)


if __name__ == "__main__":
    main()
