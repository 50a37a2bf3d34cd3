"""Isolation probes: what a sandbox must refuse and what it must allow, at each level of isolation.

Each probe names the lowest `Isolation` at which its promise holds, and tests it on a new sandbox through the contract
only. The report of `run_probes` lists each probe that was not run with the reason.
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
