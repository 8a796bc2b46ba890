"""Mutation tests: put known faults into a copy of feedline and check that the tests notice them.

    python conformance/faults.py [--only NAME]... [--json FILE] [--list | --check]

Each fault in `faults.toml` replaces one piece of text in one file and names the tests that should
fail with it. Faults are tried one at a time in a temporary copy of `src` and `tests`; C files are
recompiled.

Guarantees: the checkout is only read. It is an error if the text of a fault does not occur exactly
once, or if a named test fails without the fault.
Relies on: the packages of `pip install -e ".[dev]"`, a C compiler, and setuptools for C files.
Exit status: 0 if every fault was seen, 1 if one went unseen, 2 if one could not be tried.
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
_TESTS_PASSED, _TESTS_FAILED = 0, 1  # exit statuses of pytest; any other is an error
_TEST_S = 60  # time limit of one test
_LIMIT_S = 300.0  # of all tests of a fault
_ALL_S = 1800.0  # of the tests of all faults, run without a fault


class FaultError(Exception):
    """A fault cannot be tried; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A known fault.

    Args:
        name: unique name.
        why: effect on a user.
        file: file to change, relative to the root of the repository.
        old: text that occurs in the file exactly once.
        new: replacement.
        tests: test files or test ids of pytest; at least one should fail.
    """

    name: str
    why: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def faulty_text(self, root: Path) -> str:
        """Text of the file with the fault.

        Raises:
            FaultError: `old` does not occur exactly once, or equals `new`.
        """
        text = (root / self.file).read_text()
        if (found := text.count(self.old)) != 1:
            raise FaultError(
                f"{self.file}: expected the text to replace once, found it {found} times"
            )
        if self.old == self.new:
            raise FaultError("the old text and the new are the same")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a fault: "seen", "unseen" or "error", with the failed test or the reason."""

    name: str
    outcome: str
    detail: str
    seconds: float


def read_faults(path: Path) -> list[Fault]:
    """Read a file of faults.

    Raises:
        FaultError: a name occurs twice.
    """
    entries = tomllib.loads(path.read_text())["fault"]
    faults = [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    names = [fault.name for fault in faults]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FaultError(f"{path.name}: duplicate fault names: {', '.join(twice)}")
    return faults


def copy_tree(root: Path, to: Path) -> None:
    """Copy the files that the tests need, including compiled modules."""
    without = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("src", "tests"):
        shutil.copytree(root / name, to / name, ignore=without)
    for name in ("pyproject.toml", "setup.py", "README.md", "ARCHITECTURE.md"):
        shutil.copy(root / name, to / name)


def compile_parts(root: Path) -> None:
    """Compile the C files of a copy in place.

    Raises:
        FaultError: compilation failed.
    """
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if result.returncode or "failed" in result.stderr:  # to setuptools the extensions are optional
        raise FaultError(f"the C files do not compile: {result.stderr[-500:]}")


def run_tests(
    root: Path, tests: Sequence[str], *options: str, limit_s: float = _LIMIT_S
) -> tuple[int | None, str]:
    """Run tests of a copy; return pytest's exit status (None if it hung) and output."""
    # No bytecode: a fault may not change the size of a file, nor its modification time in seconds.
    environment = {
        **os.environ,
        "PYTHONPATH": str(root / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "--tb=line", "-rfE", *options]
    # Not a pipe: a child process left by a failed test would keep it open.
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
    """Failed tests from pytest's output; its last lines if it names none."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    names = [line.partition(" ")[2].partition(" - ")[0] for line in lines]
    return ", ".join(names) or output.strip()[-500:]


def try_fault(fault: Fault, root: Path) -> Outcome:
    """Apply a fault to the copy at `root`, run its tests, and revert it."""
    start_s, path = time.monotonic(), root / fault.file
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
    seconds = round(time.monotonic() - start_s, 1)
    return Outcome(name=fault.name, outcome=outcome, detail=detail, seconds=seconds)


def check_names(fault: Fault) -> bool:
    """Return True if the checkout has the text of the fault once, and its tests; else print why."""
    try:
        fault.faulty_text(ROOT)
        for test in fault.tests:
            path, _, name = test.partition("[")[0].partition("::")
            is_found = (ROOT / path).exists()
            if name and is_found:
                is_found = f"def {name}" in (ROOT / path).read_text()
            if not is_found:
                raise FaultError(f"there is no {test}")
    except (FaultError, OSError) as error:
        print(f"{fault.name}: {error}", file=sys.stderr)
        return False
    return True


def check_sound(root: Path, faults: Sequence[Fault]) -> None:
    """Run the named tests without a fault.

    Raises:
        FaultError: a test fails, or the tests import code from outside the copy.
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
        raise FaultError(f"the tests would import {where} instead of the copy in {root}")
    tests = sorted({test for fault in faults for test in fault.tests})
    # In parallel like `make test`, with its time limits.
    options = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
    status, output = run_tests(root, tests, *options, limit_s=_ALL_S)
    if status != _TESTS_PASSED:
        raise FaultError(f"the tests fail without any fault: {failures(output)}")


def main() -> int:
    """Try the faults and print a line for each; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="try only this fault; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes to FILE")
    parser.add_argument("--list", action="store_true", help="list the faults and exit")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check that the text and the tests of each fault exist, and exit",
    )
    options = parser.parse_args()
    faults = read_faults(HERE / "faults.toml")
    if unknown := set(options.only or ()) - {fault.name for fault in faults}:
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}. Use --list to see all")
    faults = [fault for fault in faults if options.only is None or fault.name in options.only]
    if options.list:
        for fault in faults:
            print(f"{fault.name}: {fault.why}")
        return 0
    if options.check:
        return int(sum(not check_names(fault) for fault in faults) > 0)
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
    if options.json is not None:
        record = {"counts": counts, "faults": [asdict(outcome) for outcome in outcomes]}
        options.json.write_text(json.dumps(record, indent=2) + "\n")
    return 2 if counts["error"] else int(counts["unseen"] > 0)


if __name__ == "__main__":
    sys.exit(main())
