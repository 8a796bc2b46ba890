"""Run the tests of torchdata's StatefulDataLoader on a DataLoader class.

The suite is copied to a temporary folder with the class swapped, run with pytest, and the outcomes
are compared with deviations.toml. torchdata is not needed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from outcome import InvalidDeviations, Verdict, evaluate, read_entries
from patches import SuiteChanged
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from running import LoaderImportError, about, missing_packages, run
from suite import SuiteNotFound, copy_suite, find_suite
from table import show

_LIST = Path(__file__).parent / "deviations.toml"
_EVERY = 25
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXAMPLE = """\
example:
  git clone --depth 1 https://github.com/pytorch/data ptdata
  python conformance/run.py ptdata/test/stateful_dataloader
  python conformance/run.py ptdata/test/stateful_dataloader -k test_proper_exit
  python conformance/run.py ptdata/test/stateful_dataloader \\
      --loader torch.utils.data:DataLoader --worker-kill raises

exit status: 0 if no test failed unexpectedly and at least 97% of the applicable ones passed;
otherwise 1; 2 for wrong use.
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=_EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path, metavar="SUITE_FOLDER", help="folder of the tests")
    parser.add_argument(
        "--loader",
        default="feedline:DataLoader",
        metavar="MODULE:CLASS",
        help="class to test (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all outcomes to FILE")
    parser.add_argument(
        "-n", type=int, default=2, metavar="WORKERS", dest="workers",
        help="pytest-xdist processes; 0 for none (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-k", default="", metavar="EXPR", dest="keyword", help="select tests, like pytest -k"
    )
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="SECONDS",
        help="time limit per test, six times as long for test_proper_exit (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--worker-kill", choices=("heals", "raises"), default="heals",
        help="expected result of killing a worker: heals, a new worker replaces it, the epoch is "
        "complete; raises, the loader raises an error like torch's (default: %(default)s)",
    )  # fmt: skip
    return parser.parse_args()


def _wrong(message: str) -> NoReturn:
    print(f"run.py: {message}", file=sys.stderr)
    raise SystemExit(2)


def main() -> int:
    """Run the suite and print the result; return the exit status."""
    arguments = _arguments()
    _check(arguments)
    for number in _ENDINGS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(
            prefix="conformance-", ignore_cleanup_errors=True
        ) as folder:
            return _run(arguments, Path(folder).resolve())
    except KeyboardInterrupt:
        print("run.py: interrupted; all processes have ended", file=sys.stderr)
        return 130
    except (SuiteNotFound, SuiteChanged, LoaderImportError, InvalidDeviations) as error:
        _wrong(str(error))


def _interrupt(*_: Any) -> None:
    for number in _ENDINGS:  # a second one would interrupt the clean-up
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _check(arguments: argparse.Namespace) -> None:
    module, _, name = arguments.loader.partition(":")
    if not module or not name.isidentifier():
        _wrong(
            f"--loader: expected module:Class such as feedline:DataLoader, got {arguments.loader}"
        )
    if packages := missing_packages():
        _wrong(f"missing packages: pip install {' '.join(packages)}")
    if arguments.workers and not importlib.util.find_spec("xdist"):
        print(
            "run.py: running one test at a time; to run several, pip install pytest-xdist",
            file=sys.stderr,
        )
        arguments.workers = 0
    if arguments.json and not arguments.json.parent.is_dir():
        _wrong(f"--json: no such folder: {arguments.json.parent}")


def _run(arguments: argparse.Namespace, folder: Path) -> int:
    entries = read_entries(_LIST)
    copy_suite(find_suite(arguments.suite), folder, arguments.worker_kill == "heals")
    subject = about(folder, arguments.loader)
    console = Console()
    console.print(f"{subject['class']} ({subject['file']})", highlight=False, soft_wrap=True)
    console.print(f"torch {subject['torch']}, Python {subject['python']}", highlight=False)
    with _progress() as progress:
        report = run(
            folder,
            arguments.loader,
            arguments.workers,
            arguments.keyword,
            arguments.timeout,
            progress,
        )
    if not report.outcomes and report.status == 5:
        _wrong(f"no test matches -k {arguments.keyword!r}")
    verdict = evaluate(report.outcomes, entries)
    if arguments.json:
        arguments.json.write_text(json.dumps(_record(subject, verdict), indent=1) + "\n")
    broken = report.status not in (0, 1) or not report.outcomes
    if broken:
        print(report.log[-6000:], file=sys.stderr)
        print(f"run.py: pytest ended with status {report.status}, see above", file=sys.stderr)
    show(console, verdict, not arguments.keyword)
    return 0 if verdict.good and not broken else 1


def _record(subject: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    tests = [
        {
            **asdict(test.outcome),
            "verdict": test.verdict,
            "entry": test.entry and asdict(test.entry),
        }
        for test in verdict.tests
    ]
    return {
        "subject": subject,
        "passed": verdict.passed,
        "applicable": verdict.applicable,
        "share": verdict.share,
        "good": verdict.good,
        "tests": tests,
    }


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    console = Console(stderr=True)
    columns = (
        TextColumn("tests"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} failed"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, failed=0)
        printed_at = 0

        def progress(done: int, total: int, failed: int) -> None:
            nonlocal printed_at
            bar.update(task, completed=done, total=total, failed=failed)
            if not console.is_terminal and done >= printed_at + _EVERY:
                printed_at = done
                print(f"{done} of {total} tests, {failed} failed", file=sys.stderr, flush=True)

        yield progress


if __name__ == "__main__":
    raise SystemExit(main())
