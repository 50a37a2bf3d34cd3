"""The conformance suite: the same checks for every substrate, ours and third-party.

::

    report = await run_conformance(MySubstrate())
    print(report.table())
    assert report.ok

From a shell: `python -m dutyfree.testing NAME`. Capabilities decide which checks apply, never the substrate's name.
Each check gets its own sandbox and a time limit. The report lists each check that was not run with the reason; such a
check does not count as passed.
"""

from dutyfree.testing.catalogue import all_checks
from dutyfree.testing.check import Check
from dutyfree.testing.expect import Broken, NotRun
from dutyfree.testing.gaps import KnownGap, known_gaps
from dutyfree.testing.report import Outcome, Report, Result
from dutyfree.testing.runner import run_check, run_conformance

__all__ = [
    "Broken",
    "Check",
    "KnownGap",
    "NotRun",
    "Outcome",
    "Report",
    "Result",
    "all_checks",
    "known_gaps",
    "run_check",
    "run_conformance",
]
