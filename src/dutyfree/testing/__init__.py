"""The conformance suite: one judge for every substrate, ours and anybody's.

::

    report = await run_conformance(MySubstrate())
    print(report.table())
    assert report.ok

or, without a line of Python, `python -m dutyfree.testing NAME`. Checks are gated by capability, never by name; each one
has a sandbox of its own and a time limit. What was not run is listed with its reason and is never a pass.
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
