"""Which tests fail in a cell and not on the bare host. Everything here is pure."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase


class Outcome(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


Outcomes = Mapping[str, Outcome]
NO_RESULTS = "(no results)"
"""Stands for all tests of a unit that was killed before it could report any."""


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that stays, and why."""

    suite: str
    tests: str
    """A pattern, as of a shell, of the tests' names."""
    where: tuple[str, ...]
    """The comparisons in which it may fail."""
    reason: str

    def covers(self, suite: str, comparison: str, test: str) -> bool:
        """Whether this is that difference."""
        return suite == self.suite and comparison in self.where and fnmatchcase(test, self.tests)


def read_known(text: str) -> list[Known]:
    """The list of known differences. Raises ValueError, KeyError or TypeError for one that is malformed."""
    found = []
    for entry in tomllib.loads(text)["known"]:
        found += [Known(entry["suite"], tests, tuple(entry["where"]), entry["reason"]) for tests in entry["tests"]]
    return found


def only_in_cell(bare: Outcomes, cell: Outcomes) -> list[str]:
    """Tests that fail in a cell and not on the bare host.

    A test that only the cell has run counts, too: programs find things in a cell that they do not find outside.
    """
    if not cell:
        return [NO_RESULTS] if bare else []
    failed = [test for test, outcome in cell.items() if outcome is Outcome.FAILED]
    # A failure of a whole class or module has a name of its own, so that what passed outside may be missing inside.
    missing = [test for test, outcome in bare.items() if outcome is Outcome.PASSED and test not in cell]
    return sorted({test for test in failed if bare.get(test) is not Outcome.FAILED} | set(missing))


def reason_for(known: Iterable[Known], suite: str, comparison: str, test: str) -> str | None:
    """Why this difference is known, or None if it is not."""
    return next((each.reason for each in known if each.covers(suite, comparison, test)), None)
