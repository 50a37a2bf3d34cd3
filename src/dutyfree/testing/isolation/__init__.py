"""Isolation probes: what must fail, and what must still work, behind each kind of wall.

Each probe names the lowest `Isolation` at which its promise holds and tries it on a fresh sandbox, through the contract
alone. `run_probes` gives a report in which everything that was not run stands with its reason.
"""

from dutyfree.testing.isolation.catalogue import PROBES
from dutyfree.testing.isolation.probe import Broken, NotApplicable, Probe, Recorded, Scene, Topic
from dutyfree.testing.isolation.program import CannotCompile, compile_program
from dutyfree.testing.isolation.runner import Prober, run_probes
from dutyfree.testing.report import Outcome, Report, Result

__all__ = [
    "Broken",
    "CannotCompile",
    "NotApplicable",
    "Outcome",
    "PROBES",
    "Probe",
    "Prober",
    "Recorded",
    "Report",
    "Result",
    "Scene",
    "Topic",
    "compile_program",
    "run_probes",
]
