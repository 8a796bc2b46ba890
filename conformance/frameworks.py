"""Run frameworks' own tests of data loading with feedline's DataLoader.

A framework's tests are copied from a checkout to a temporary folder and run twice with pytest:
unchanged, with torch's DataLoader, and with `DataLoader` imported from feedline. Tests that pass
with torch's class and fail with feedline's are compared with frameworks.toml. The installed
framework is used; it keeps torch's class.
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

from outcome import Entry, InvalidDeviations, evaluate, read_entries
from running import Outcome, missing_packages, run
from suites import SUITES, Suite
from swap import swap_loader_class

_HERE = Path(__file__).parent
_LIST = _HERE / "frameworks.toml"
_SHIM = _HERE / "shim"
_SLOWEST = 1.2  # maximum ratio of the whole suite's time to that with torch's class
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
    """Remove calls to these functions from a program."""
    for call in calls:
        text = re.sub(rf"^( +){call}\(.*\)$", r"\1pass", text, flags=re.MULTILINE)
    return text


def copy_suite(suite: Suite, checkout: Path, folder: Path, *, swap: bool) -> None:
    """Copy a suite into an empty folder; SystemExit if the checkout lacks a file."""
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
        scripts = {"scripts": names, "processes": suite.processes}
        (folder / "scripts.json").write_text(json.dumps(scripts))
        shutil.copy(_SHIM / "test_scripts.py", folder)
        tests.append("test_scripts.py")
    if swap:
        for path in [folder / name for name in suite.tests] + [
            folder / Path(name).name for name in suite.scripts
        ]:
            path.write_text(swap_loader_class(path.read_text()))
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
        copy_suite(suite, checkout, folder, swap=swap)
        printed_at = 0

        def progress(done: int, total: int, failed: int) -> None:
            nonlocal printed_at
            if done >= printed_at + 25:
                printed_at = done
                print(f"{kind}: {done} of {total} tests, {failed} failed", file=sys.stderr)

        os.environ["CONFORMANCE_MODULES"] = " ".join(suite.modules)
        report = run(folder, kind, options.workers, options.keyword, options.timeout, progress)
        if not report.outcomes:
            print(report.log[-4000:], file=sys.stderr)
            raise SystemExit(_wrong("no test ran, see above"))
        return report.outcomes


def compare(
    torch_outcomes: list[Outcome], feedline_outcomes: list[Outcome], entries: list[Entry]
) -> int:
    """Print the differences; return the exit status."""
    passed = {outcome.test for outcome in torch_outcomes if outcome.result == "passed"}
    found = {outcome.test: outcome for outcome in feedline_outcomes}
    verdict = evaluate([found.get(test, Outcome(test)) for test in sorted(passed)], entries)
    seconds = [
        sum(outcome.seconds for outcome in outcomes if outcome.test in passed)
        for outcomes in (torch_outcomes, feedline_outcomes)
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
    """Run a framework's tests with both classes and print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("framework", choices=sorted(SUITES))
    parser.add_argument("checkout", type=Path, help="checkout of the framework's repository")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes to FILE")
    parser.add_argument(
        "-k", default="", metavar="EXPR", dest="keyword", help="select tests, like pytest -k"
    )
    parser.add_argument(
        "-n", type=int, default=2, metavar="WORKERS", dest="workers", help="pytest-xdist processes"
    )
    parser.add_argument(
        "--timeout", type=float, default=120, metavar="SECONDS", help="time limit per test"
    )
    options = parser.parse_args()
    if packages := missing_packages():
        return _wrong(f"missing packages: pip install {' '.join(packages)}")
    suite, prefix = SUITES[options.framework], f"{options.framework}:"
    try:
        own_entries = [entry for entry in read_entries(_LIST) if entry.test.startswith(prefix)]
    except InvalidDeviations as error:
        return _wrong(str(error))
    entries = [Entry(e.test.removeprefix(prefix), e.kind, e.reason) for e in own_entries]
    torch_outcomes = _run(suite, options.checkout, False, options)
    feedline_outcomes = _run(suite, options.checkout, True, options)
    if options.json:
        record = {
            "torch": [asdict(o) for o in torch_outcomes],
            "feedline": [asdict(o) for o in feedline_outcomes],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return compare(torch_outcomes, feedline_outcomes, entries)


if __name__ == "__main__":
    raise SystemExit(main())
