"""Put single faults into a copy of feedline and see whether the tests notice.

    python conformance/faults.py [--only NAME]... [--json FILE] [--list | --check]

Each fault in `faults.toml` replaces one piece of text in one file and names the tests that should
fail with it. The faults are put in one at a time, in a temporary copy of `src` and `tests`; the
named tests run there, and the fault is taken out again. C files are compiled anew.

Guarantees: the checkout is only read. A fault whose text does not occur exactly once is an error,
and so is a named test that fails without any fault: then its failing would say nothing.
Relies on: the packages of `pip install -e ".[dev]"`, a C compiler
and setuptools for faults in C files.
Ends with status 0 if every fault was seen, 1 if one went unseen, 2 if one could not be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
_TESTS_PASSED, _TESTS_FAILED = 0, 1  # exit statuses of pytest; all others are no verdict
_TEST_S = 60  # one test
_LIMIT_S = 300.0  # all tests of a fault
_ALL_S = 1800.0  # those of all faults, without any


class FaultError(Exception):
    """A fault that cannot be tried; says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One fault.

    Args:
        name: unique.
        why: what goes wrong for a user.
        file: the file it is put into, relative to the root of the repository.
        old: text that occurs in the file exactly once.
        new: what stands there instead.
        tests: test files, or single tests as pytest names them; one of them should fail.
    """

    name: str
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def faulty_text(self, root: Path) -> str:
        """The file's text with the fault in it.

        Raises:
            FaultError: `old` does not occur exactly once, or nothing would change.
        """
        text = (root / self.file).read_text()
        if (found := text.count(self.old)) != 1:
            raise FaultError(f"{self.file} holds the text to replace {found} times, not once")
        if self.old == self.new:
            raise FaultError("the old text and the new are the same")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a fault: "seen", "unseen" or "error"; the first test that failed, or why."""

    name: str
    outcome: str
    detail: str
    seconds: float


def read_faults(path: Path) -> list[Fault]:
    """The faults of a file.

    Raises:
        FaultError: two have one name.
    """
    entries = tomllib.loads(path.read_text())["fault"]
    faults = [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    names = [fault.name for fault in faults]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FaultError(f"{path.name}: more than one fault is called {', '.join(twice)}")
    return faults


def copy_tree(root: Path, to: Path) -> None:
    """Copy what the tests need, compiled modules included."""
    without = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests"):
        shutil.copytree(root / name, to / name, ignore=without)
    for name in ("pyproject.toml", "setup.py", "README.md", "ARCHITECTURE.md"):
        shutil.copy(root / name, to / name)


def compile_parts(root: Path) -> None:
    """Compile the C files of a copy in place.

    Raises:
        FaultError: they do not compile.
    """
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode or "failed" in done.stderr:  # the parts are optional to setuptools
        raise FaultError(f"the C files do not compile: {done.stderr[-500:]}")


def run_tests(
    root: Path, tests: Sequence[str], *options: str, limit_s: float = _LIMIT_S
) -> tuple[int | None, str]:
    """Run tests of a copy: pytest's exit status, None if it hung, and its output."""
    # No bytecode: a fault may leave a file's size and second of change as they were.
    environment = {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "--tb=line", "-rfE", *options]
    # A file: a child that a failed test leaves behind would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, *tests],
            cwd=root,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        return status, output.read()


def failures(output: str) -> str:
    """The tests that failed, from pytest's output; its end if it names none."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    names = [line.partition(" ")[2].partition(" - ")[0] for line in lines]
    return ", ".join(names) or output.strip()[-500:]


def try_fault(fault: Fault, root: Path) -> Outcome:
    """Put a fault into the copy at `root`, run its tests, and take it out again."""
    began, path = time.monotonic(), root / fault.file
    try:
        faulty = fault.faulty_text(root)
    except (FaultError, OSError) as error:
        return Outcome(name=fault.name, outcome="error", detail=str(error), seconds=0.0)
    sound = path.read_text()
    path.write_text(faulty)
    try:
        if path.suffix == ".c":
            compile_parts(root)
        status, output = run_tests(root, fault.tests, "-x", f"--timeout={_TEST_S}")
    except FaultError as error:
        return Outcome(name=fault.name, outcome="error", detail=str(error), seconds=0.0)
    finally:
        path.write_text(sound)
        if path.suffix == ".c":
            compile_parts(root)
    if status is None:
        outcome, detail = "seen", f"the tests did not end within {_LIMIT_S:.0f} s"
    elif status < 0:
        outcome, detail = "seen", f"the tests were ended by {signal.Signals(-status).name}"
    elif status == _TESTS_FAILED:
        outcome, detail = "seen", failures(output)
    elif status == _TESTS_PASSED:
        outcome, detail = "unseen", ", ".join(fault.tests)
    else:
        outcome, detail = "error", f"pytest ended with {status}: {failures(output)}"
    seconds = round(time.monotonic() - began, 1)
    return Outcome(name=fault.name, outcome=outcome, detail=detail, seconds=seconds)


def text_is_there(fault: Fault) -> bool:
    """Return True if a fault's text occurs once in the checkout; else print why not."""
    try:
        fault.faulty_text(ROOT)
    except (FaultError, OSError) as error:
        print(f"{fault.name}: {error}", file=sys.stderr)
        return False
    return True


def check_sound(root: Path, faults: Sequence[Fault]) -> None:
    """Run the named tests without any fault.

    Raises:
        FaultError: one fails, or they run other code than the copy's.
    """
    where = subprocess.run(
        [sys.executable, "-c", "import feedline; print(feedline.__file__)"],
        env={**os.environ, "PYTHONPATH": str(root / "src")},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(where).is_relative_to(root):
        raise FaultError(f"the tests would run {where}, not the copy in {root}")
    tests = sorted({test for fault in faults for test in fault.tests})
    # As `make test` runs them, with its time limits: they share the machine.
    options = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
    status, output = run_tests(root, tests, *options, limit_s=_ALL_S)
    if status != _TESTS_PASSED:
        raise FaultError(f"the tests fail without any fault: {failures(output)}")


def main() -> int:
    """Try the faults, print a line for each; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", metavar="NAME", help="these faults alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes to FILE")
    parser.add_argument("--list", action="store_true", help="name the faults and try none")
    parser.add_argument(
        "--check", action="store_true", help="check that each fault's text is in its file; try none"
    )
    chosen = parser.parse_args()
    faults = read_faults(HERE / "faults.toml")
    if unknown := set(chosen.only or ()) - {fault.name for fault in faults}:
        parser.error(f"no fault is called {', '.join(sorted(unknown))}; --list names them")
    faults = [fault for fault in faults if chosen.only is None or fault.name in chosen.only]
    if chosen.list:
        for fault in faults:
            print(f"{fault.name}: {fault.why}")
        return 0
    if chosen.check:
        return int(sum(not text_is_there(fault) for fault in faults) > 0)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="feedline-faults-") as folder:
        root = Path(folder).resolve()
        copy_tree(ROOT, root)
        try:
            check_sound(root, faults)
        except FaultError as error:
            print(error, file=sys.stderr)
            return 2
        for fault in faults:
            outcomes.append(try_fault(fault, root))
            last = outcomes[-1]
            print(f"{last.outcome:7}{last.name} ({last.seconds} s): {last.detail}", flush=True)
    counts = {
        kind: sum(each.outcome == kind for each in outcomes) for kind in ("seen", "unseen", "error")
    }
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if chosen.json is not None:
        record = {"counts": counts, "faults": [asdict(outcome) for outcome in outcomes]}
        chosen.json.write_text(json.dumps(record, indent=2) + "\n")
    return 2 if counts["error"] else int(counts["unseen"] > 0)


if __name__ == "__main__":
    sys.exit(main())
