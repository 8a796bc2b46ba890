"""Compare the outcomes of a run with the list of known deviations."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from running import Outcome

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "KINDS",
    "NEEDED_SHARE",
    "Entry",
    "EvaluatedTest",
    "InvalidDeviations",
    "Verdict",
    "evaluate",
    "read_entries",
]

DEVIATION, NOT_APPLICABLE = "deviation", "not applicable"
KINDS = (DEVIATION, NOT_APPLICABLE)
NEEDED_SHARE = 0.97


class InvalidDeviations(Exception):
    """The list of deviations cannot be used."""


@dataclass(frozen=True)
class Entry:
    """A known deviation of some tests.

    Args:
        test: fnmatch pattern of file::class::name.
        kind: "deviation" (counts as not passed) or "not applicable" (does not count).
        reason: the reason, in a sentence.
    """

    test: str
    kind: str
    reason: str


@dataclass(frozen=True)
class EvaluatedTest:
    """A test's outcome and its verdict.

    Args:
        outcome: outcome of the test.
        verdict: "passed", "skipped", "deviation", "not applicable" or "unexpected".
        entry: matching entry of the list.
    """

    outcome: Outcome
    verdict: str
    entry: Entry | None


@dataclass(frozen=True)
class Verdict:
    """Result of a run.

    Args:
        tests: all tests with their verdicts.
        unmatched: entries that match no test of the run.
    """

    tests: list[EvaluatedTest]
    unmatched: list[Entry]

    def of(self, verdict: str) -> list[EvaluatedTest]:
        """Tests with a verdict."""
        return [test for test in self.tests if test.verdict == verdict]

    @property
    def better(self) -> list[EvaluatedTest]:
        """Tests that pass although they are listed."""
        return [test for test in self.tests if test.outcome.result == "passed" and test.entry]

    @property
    def passed(self) -> int:
        """Number of applicable tests that passed."""
        return len(self.of("passed"))

    @property
    def applicable(self) -> int:
        """Number of tests that count: all except skipped and not applicable ones."""
        return self.passed + len(self.of(DEVIATION)) + len(self.of("unexpected"))

    @property
    def share(self) -> float:
        """Share of the applicable tests that passed."""
        return self.passed / self.applicable if self.applicable else 0.0

    @property
    def good(self) -> bool:
        """True if no test failed unexpectedly and enough passed."""
        return not self.of("unexpected") and self.share >= NEEDED_SHARE


def read_entries(path: Path) -> list[Entry]:
    """Read a list of deviations.

    Raises:
        InvalidDeviations: the list is malformed.
    """
    try:
        entries = [Entry(**entry) for entry in tomllib.loads(path.read_text())["entry"]]
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise InvalidDeviations(f"{path}: {error}") from error
    for entry in entries:
        if entry.kind not in KINDS or not entry.reason.strip():
            raise InvalidDeviations(f"{path}: {entry.test} needs a reason and a kind in {KINDS}")
    return entries


def evaluate(outcomes: list[Outcome], entries: list[Entry]) -> Verdict:
    """Evaluate each outcome with the first entry that matches its test."""
    tests, used = [], set()
    for outcome in outcomes:
        entry = next((e for e in entries if fnmatchcase(outcome.test, e.test)), None)
        used.add(entry)
        tests.append(EvaluatedTest(outcome, _verdict(outcome, entry), entry))
    return Verdict(tests, [entry for entry in entries if entry not in used])


def _verdict(outcome: Outcome, entry: Entry | None) -> str:
    if outcome.result == "skipped":
        return "skipped"
    if entry and entry.kind == NOT_APPLICABLE:
        return NOT_APPLICABLE
    if outcome.result == "passed":
        return "passed"
    return DEVIATION if entry else "unexpected"
