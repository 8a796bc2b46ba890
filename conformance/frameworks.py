"""Holds feedline's DataLoader against frameworks' own tests of data loading.

A framework's tests are copied from a checkout to a temporary folder and run twice by pytest: as
they are, with torch's DataLoader, and with `DataLoader` imported from feedline instead. What passes
with torch's class and fails with feedline's is compared with frameworks.toml. The frameworks
themselves are those that are installed; they keep torch's class.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from outcome import BadList, Entry, judged, listed
from running import Outcome, missing, run
from suites import SUITES, Suite
from swap import swapped

_HERE = Path(__file__).parent
_LIST = _HERE / "frameworks.toml"
_SHIM = _HERE / "shim"
_SLOWEST = 1.2  # times the time with torch's class, the whole suite
_MIN_TIMED_S = 20.0  # shorter suites mostly measure imports and noise
_EXAMPLE = """\
example:
  git clone --depth 1 https://github.com/huggingface/accelerate
  python conformance/frameworks.py accelerate accelerate
  ACCELERATE_USE_CPU=1 python conformance/frameworks.py accelerate-scripts accelerate -n 0
  git clone --depth 1 https://github.com/Lightning-AI/pytorch-lightning
  python conformance/frameworks.py lightning pytorch-lightning
  python conformance/frameworks.py fabric pytorch-lightning

exit status: 0 if all tests that pass with torch's class pass or are listed with their reason, and
take at most 1.2 times as long (suites of 20 s or more); otherwise 1; 2 for wrong use.
"""


def _without(text: str, calls: tuple[str, ...]) -> str:
    """A program that does not call these functions where it called them by name in a line."""
    for call in calls:
        text = re.sub(rf"^( +){call}\(.*\)$", r"\1pass", text, flags=re.MULTILINE)
    return text


def copied(suite: Suite, checkout: Path, folder: Path, *, swap: bool) -> None:
    """Copy a suite into an empty folder; SystemExit where the checkout lacks a file."""
    for name in suite.tests + suite.scripts:
        if not (checkout / name).is_file():
            raise SystemExit(
                _wrong(f"{checkout} has no {name}: is it a checkout of the framework?")
            )
    tests, options = list(suite.tests), ""
    shutil.copytree(checkout / "tests", folder / "tests")
    for name in suite.scripts:
        script = folder / Path(name).name
        script.write_text(_without((checkout / name).read_text(), suite.calls))
    if suite.scripts:
        names = [Path(name).name for name in suite.scripts]
        given = {"scripts": names, "processes": suite.processes}
        (folder / "scripts.json").write_text(json.dumps(given))
        shutil.copy(_SHIM / "test_scripts.py", folder)
        tests.append("test_scripts.py")
    if swap:
        for path in [folder / name for name in suite.tests] + [
            folder / Path(name).name for name in suite.scripts
        ]:
            path.write_text(swapped(path.read_text()))
        if suite.modules:
            for file in (_SHIM / "swap_plugin.py", _HERE / "swap.py"):
                shutil.copy(file, folder)
            options = "addopts = -p swap_plugin\n"
    shutil.copy(_SHIM / "conformance_plugin.py", folder)
    (folder / "tmp").mkdir()
    (folder / "pytest.ini").write_text(
        f"[pytest]\ntestpaths = {' '.join(tests)}\npythonpath = {suite.root}\n"
        f"filterwarnings = ignore\n{options}"
    )


def _wrong(message: str) -> int:
    print(f"frameworks.py: {message}", file=sys.stderr)
    return 2


def _run(suite: Suite, checkout: Path, swap: bool, options: argparse.Namespace) -> list[Outcome]:
    kind = "feedline's" if swap else "torch's"
    with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        copied(suite, checkout, folder, swap=swap)
        told = 0

        def progress(done: int, total: int, failed: int) -> None:
            nonlocal told
            if done >= told + 25:
                told = done
                print(f"{kind}: {done} of {total} tests, {failed} failed", file=sys.stderr)

        os.environ["CONFORMANCE_MODULES"] = " ".join(suite.modules)
        report = run(folder, kind, options.workers, options.keyword, options.timeout, progress)
        if not report.outcomes:
            print(report.log[-4000:], file=sys.stderr)
            raise SystemExit(_wrong("no test was run, see above"))
        return report.outcomes


def compare(theirs: list[Outcome], ours: list[Outcome], entries: list[Entry]) -> int:
    """Print what differs; the exit status."""
    passed = {outcome.test for outcome in theirs if outcome.result == "passed"}
    found = {outcome.test: outcome for outcome in ours}
    verdict = judged([found.get(test, Outcome(test)) for test in sorted(passed)], entries)
    seconds = [
        sum(outcome.seconds for outcome in outcomes if outcome.test in passed)
        for outcomes in (theirs, ours)
    ]
    for test in verdict.tests:
        if test.outcome.result != "passed":
            why = test.entry.reason if test.entry else test.outcome.message[:200]
            print(f"{test.verdict:14} {test.outcome.test}\n    {why}")
    for test in verdict.better:
        print(f"listed, yet passed: {test.outcome.test}")
    unexpected, ratio = len(verdict.of("unexpected")), seconds[1] / max(seconds[0], 1e-9)
    print(
        f"of {len(passed)} tests that pass with torch's class {len(verdict.of('passed'))} pass "
        f"with feedline's, {len(verdict.of('deviation'))} are listed, {unexpected} are not; "
        f"{seconds[0]:.0f} s and {seconds[1]:.0f} s ({ratio:.2f} times)"
    )
    is_slow = seconds[0] >= _MIN_TIMED_S and ratio > _SLOWEST
    return int(unexpected > 0 or is_slow)


def main() -> int:
    """Run a framework's tests with both classes and say what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("framework", choices=sorted(SUITES))
    parser.add_argument("checkout", type=Path, help="its repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each outcome there")
    parser.add_argument("-k", default="", metavar="EXPR", dest="keyword", help="as pytest's -k")
    parser.add_argument(
        "-n", type=int, default=2, metavar="WORKERS", dest="workers", help="of xdist"
    )
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="of a test")
    options = parser.parse_args()
    if lacking := missing():
        return _wrong(f"the suites need more: pip install {' '.join(lacking)}")
    suite, prefix = SUITES[options.framework], f"{options.framework}:"
    try:
        listed_ones = [entry for entry in listed(_LIST) if entry.test.startswith(prefix)]
    except BadList as error:
        return _wrong(str(error))
    entries = [Entry(e.test.removeprefix(prefix), e.kind, e.reason) for e in listed_ones]
    theirs = _run(suite, options.checkout, False, options)
    ours = _run(suite, options.checkout, True, options)
    if options.json:
        record = {"torch": [asdict(o) for o in theirs], "feedline": [asdict(o) for o in ours]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return compare(theirs, ours, entries)


if __name__ == "__main__":
    raise SystemExit(main())
