"""Build the libjpeg-turbo that wheels contain, as a static library.

    python tools/libjpeg.py FOLDER
    FEEDLINE_LIBJPEG=FOLDER pip wheel .

Needs git, cmake, a C compiler and nasm (on x86-64: without it images are decoded at half the speed,
so the build fails).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "3.2.0"
COMMIT = "c85e6b905bf237038faa936dab160ebfc5da0344"
SOURCE = os.environ.get("LIBJPEG_SOURCE", "https://github.com/libjpeg-turbo/libjpeg-turbo")


def run(*command: str | Path) -> None:
    """Run a command, print it, and exit with its status if it fails."""
    print("+", *command, flush=True)
    if status := subprocess.run(command).returncode:
        sys.exit(status)


def main() -> None:
    """Build the library into the folder of the command line, unless it is there."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    prefix = Path(sys.argv[1]).absolute()
    if (prefix / VERSION).exists():
        return
    with tempfile.TemporaryDirectory() as scratch:
        source, build = Path(scratch, "source"), Path(scratch, "build")
        run("git", "clone", "--quiet", "--depth=1", f"--branch={VERSION}", SOURCE, source)
        command = ["git", "-C", str(source), "rev-parse", "HEAD"]
        commit = subprocess.check_output(command, text=True).strip()
        if commit != COMMIT:
            sys.exit(f"{SOURCE} has {commit} as {VERSION}, expected {COMMIT}")
        run(
            *("cmake", "-S", source, "-B", build, f"-DCMAKE_INSTALL_PREFIX={prefix}"),
            *("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_LIBDIR=lib", "-DREQUIRE_SIMD=1"),
            *("-DENABLE_SHARED=0", "-DWITH_TURBOJPEG=0", "-DCMAKE_POSITION_INDEPENDENT_CODE=1"),
            "-DWITH_CRT_DLL=1",  # Windows: the runtime that Python uses
            *(["-DCMAKE_C_FLAGS=-D__RPCNDR_H__ -Dboolean=int"] if os.name == "nt" else []),
        )
        run("cmake", "--build", build, "--config", "Release", "--parallel")
        run("cmake", "--install", build, "--config", "Release")
    (prefix / VERSION).touch()


if __name__ == "__main__":
    main()
