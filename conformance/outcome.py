"""Judges the outcomes of a run against the list of what is known to differ."""

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

__all__ = ["KINDS", "NEEDED_SHARE", "BadList", "Entry", "Judged", "Verdict", "judged", "listed"]

DEVIATION, NOT_APPLICABLE = "deviation", "not applicable"
KINDS = (DEVIATION, NOT_APPLICABLE)
NEEDED_SHARE = 0.97


class BadList(Exception):
    """The list of deviations cannot be used."""


@dataclass(frozen=True)
class Entry:
    """What is known of some tests.

    Args:
        test: a pattern of file::class::name, as fnmatch has it.
        kind: "deviation" (counts as not passed) or "not applicable" (does not count).
        reason: why, in a sentence.
    """

    test: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Judged:
    """A test's outcome and what it counts as.

    Args:
        outcome: how it went.
        verdict: "passed", "skipped", "deviation", "not applicable" or "unexpected".
        entry: what the list says of it.
    """

    outcome: Outcome
    verdict: str
    entry: Entry | None


@dataclass(frozen=True)
class Verdict:
    """What a run comes to.

    Args:
        tests: each judged.
        unmatched: entries that match no test of the run.
    """

    tests: list[Judged]
    unmatched: list[Entry]

    def of(self, verdict: str) -> list[Judged]:
        """The tests with a verdict."""
        return [test for test in self.tests if test.verdict == verdict]

    @property
    def better(self) -> list[Judged]:
        """Tests that pass although they are listed."""
        return [test for test in self.tests if test.outcome.result == "passed" and test.entry]

    @property
    def passed(self) -> int:
        """How many of the applicable tests passed."""
        return len(self.of("passed"))

    @property
    def applicable(self) -> int:
        """How many tests count: all but the skipped and the not applicable."""
        return self.passed + len(self.of(DEVIATION)) + len(self.of("unexpected"))

    @property
    def share(self) -> float:
        """The share passed of the applicable."""
        return self.passed / self.applicable if self.applicable else 0.0

    @property
    def good(self) -> bool:
        """Whether nothing failed unexpectedly and enough passed."""
        return not self.of("unexpected") and self.share >= NEEDED_SHARE


def listed(path: Path) -> list[Entry]:
    """The entries of a list.

    Raises:
        BadList: it is not as it should be.
    """
    try:
        entries = [Entry(**entry) for entry in tomllib.loads(path.read_text())["entry"]]
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise BadList(f"{path}: {error}") from error
    for entry in entries:
        if entry.kind not in KINDS or not entry.reason.strip():
            raise BadList(f"{path}: {entry.test} needs a reason and a kind, one of {KINDS}")
    return entries


def judged(outcomes: list[Outcome], entries: list[Entry]) -> Verdict:
    """Each outcome judged by the first entry that matches its test."""
    tests, used = [], set()
    for outcome in outcomes:
        entry = next((e for e in entries if fnmatchcase(outcome.test, e.test)), None)
        used.add(entry)
        tests.append(Judged(outcome, _verdict(outcome, entry), entry))
    return Verdict(tests, [entry for entry in entries if entry not in used])


def _verdict(outcome: Outcome, entry: Entry | None) -> str:
    if outcome.result == "skipped":
        return "skipped"
    if entry and entry.kind == NOT_APPLICABLE:
        return NOT_APPLICABLE
    if outcome.result == "passed":
        return "passed"
    return DEVIATION if entry else "unexpected"
