"""Start of a program under `feedline run`.

The program is started by Python itself, with the folder `hook` on its search path and the settings
in the environment. So its child processes have them too, whatever starts them: multiprocessing,
torchrun, accelerate or subprocess.

Guarantees: `sys.argv`, `sys.path`, `__main__` and the exit status are those of Python itself.
feedline's own workers start without the hook.
Relies on: imports that take no time; this module is imported before the program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn

from feedline.errors import UsageError

VARIABLE = "FEEDLINE_RUN"
"""Variable of the environment with the settings, as JSON."""
_HOOK = Path(__file__).parent / "hook"
_PYTHON_SUFFIXES = (".py", ".pyw", ".pyc", ".pyz", ".zip")


@dataclass(frozen=True, kw_only=True)
class PatchSettings:
    """Settings of `feedline run` and `feedline.patch`.

    Raises:
        UsageError: a value is invalid.
    """

    folder: str | None = None  # absolute path of the folder of the run; None: nothing is written
    root: int | None = None  # id of the process that prints the summary; None: the first one
    watch: bool = False  # record torch's loaders and replace none
    off: tuple[str, ...] = ()  # class names of datasets or loaders that stay torch's
    workers: str | None = None  # "auto" for loaders that adapt their number of workers, or None
    cache: str | None = None  # folder for caches of resized copies, one per dataset
    compare: int = 0  # batches of each loader that are first compared with torch's; 0 for none

    def __post_init__(self) -> None:
        if self.workers not in (None, "auto"):
            raise UsageError(f"must be 'auto', got {self.workers!r}", argument="workers")
        if self.compare < 0:
            raise UsageError(f"must be at least 0, got {self.compare}", argument="compare")
        if self.watch and (self.workers or self.cache or self.off or self.compare):
            raise UsageError(
                "replaces nothing, so off, workers, cache and compare do nothing",
                argument="watch",
            )


def python_command(target: Sequence[str]) -> list[str]:
    """Return the arguments for Python that run a target: a script, -m and a module, -c and code,
    or - for a script from standard input.

    A command on PATH that is a Python script, such as torchrun, may be named like a script. A
    UsageError if there is no such script, it is not for Python, or this Python ignores PYTHONPATH,
    by which loaders are replaced.
    """
    isolated = next(Path(sys.executable or ".").parent.glob("python*._pth"), None)  # Windows only
    if isolated is not None:
        raise UsageError(
            f"feedline run needs the variable PYTHONPATH, which this Python ignores: {isolated}",
            hint="use a complete Python, or remove that file",
        )
    first = target[0]
    if first in ("-m", "-c", "-"):
        if first != "-" and len(target) < 2:
            raise UsageError(f"{first} needs {'the name of a module' if first == '-m' else 'code'}")
        return list(target)
    path = first if os.path.exists(first) else shutil.which(first)
    if path is None and first.startswith("-"):
        raise UsageError(f"no such option: {first}", hint="see `feedline run --help`")
    if path is None:
        raise UsageError(
            f"no such script: {first!r}",
            hint="name a Python script, a command such as torchrun, or -m and a module",
        )
    if os.path.isfile(path) and not path.endswith(_PYTHON_SUFFIXES):
        with open(path, "rb") as file:
            head = file.read(512)
        first_line = head.split(b"\n", 1)[0]
        if b"\0" in head or (first_line.startswith(b"#!") and b"python" not in first_line):
            raise UsageError(
                f"{first!r} is not a Python script",
                hint="if it starts Python itself, write `feedline run` before the script in it",
            )
    return [path, *target[1:]]


def start_program(target: Sequence[str], settings: PatchSettings) -> NoReturn:
    """Run a target of `python_command`. Does not return: the exit status is the program's.

    Without a folder in the settings, the run gets one in `runs`.
    """
    # takes time, which the program does not need
    from feedline.system import flush_standard_streams, interpreter_options, python_program

    program, command = python_program(), python_command(target)
    # These would leave out the hook, or folders of the script's search path.
    left_out = ("-E", "-I", "-P", "-S", "-s")
    options = [each for each in interpreter_options() if each not in left_out]
    options += ["-u"] * getattr(sys.stdout, "write_through", False)
    if settings.folder is None:
        settings = replace(settings, folder=str(Path("runs", _folder_name(target)).absolute()))
    environment = dict(os.environ)
    environment[VARIABLE] = json.dumps(asdict(settings))
    search_path = [str(_HOOK), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, search_path))
    if _is_traced():
        print(
            "feedline run: the program runs in a new Python process, which a profiler, debugger or "
            "coverage tool of this process may not measure. Start the tool there, e.g. "
            "`feedline run -m cProfile train.py`.",
            file=sys.stderr,
        )
    flush_standard_streams()
    if sys.platform != "win32":
        os.execve(program, [program, *options, *command], environment)
    with subprocess.Popen([program, *options, *command], env=environment) as process:
        while True:
            try:
                raise SystemExit(process.wait())
            except KeyboardInterrupt:
                continue  # the console sends Ctrl-C to the program, too


def _is_traced() -> bool:
    """Return True if a profiler, debugger or coverage tool has hooks in this process."""
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12 and newer
    tools = () if monitoring is None else map(monitoring.get_tool, range(6))
    return bool(sys.gettrace() or sys.getprofile() or any(tools))


def _folder_name(target: Sequence[str]) -> str:
    """Name of the folder of a run: all ranks of a launcher such as torchrun get the same one."""
    from feedline.system import launch_id

    first = target[0]
    name = target[1] if first == "-m" else {"-c": "code", "-": "stdin"}.get(first, Path(first).stem)
    return f"{name}-{launch_id() or time.strftime('%Y%m%d-%H%M%S')}"


def read_settings() -> PatchSettings:
    """Return the settings in the environment. The first process of a program is its root."""
    values = json.loads(os.environ[VARIABLE])
    settings = PatchSettings(**{**values, "off": tuple(values["off"])})
    if settings.root is None:
        settings = replace(settings, root=os.getpid())
        os.environ[VARIABLE] = json.dumps(asdict(settings))
    return settings
