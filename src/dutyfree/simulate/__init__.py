"""Pools and fleets under a simulated clock: the real planner and router, with latencies that were measured."""

from dutyfree.simulate.file import load_scenario
from dutyfree.simulate.outcome import Outcome, Summary
from dutyfree.simulate.recording import Agreement, Recording, agreement, load_recording, parse_recording
from dutyfree.simulate.run import replay, simulate
from dutyfree.simulate.scenario import PoolModel, Scenario, default_scenario

__all__ = [
    "Agreement",
    "Outcome",
    "PoolModel",
    "Recording",
    "Scenario",
    "Summary",
    "agreement",
    "default_scenario",
    "load_recording",
    "load_scenario",
    "parse_recording",
    "replay",
    "simulate",
]
