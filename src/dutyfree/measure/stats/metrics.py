"""Metrics: one number per metric and trial. Pure, and needs no numpy."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from statistics import fmean, median
from typing import Final

from dutyfree.measure.results.records import ActionRecord, Trial
from dutyfree.model import Phase

NS_PER_MS: Final = 1_000_000
UNIT: Final = "ms"
"""The unit of every metric, from microseconds to minutes, so that no two numbers can be confused."""


class Metric(StrEnum):
    """One number of a trial. The sandbox is the unit of repetition, so that actions are first combined within it."""

    FIRST_OBSERVATION = "first_observation"
    """From the start to the first observation, including set-up; for a cold trial: the cold start."""
    TRAJECTORY = "trajectory"
    """The whole trial, from the start of creation to the end of destruction: service time."""
    AMORTISED_ACTION = "amortised_action"
    """The whole trial divided by its number of actions."""
    ACTION = "action"
    """The median of its actions' latencies."""
    ACTION_TAX = "action_tax"
    """The median of dispatch + observe over its actions."""
    MEAN_ACTION_TAX = "mean_action_tax"
    """The mean of dispatch + observe over its actions: unlike medians, means add up to a total."""
    CREATE = "create"
    READY = "ready"
    SETUP = "setup"
    DESTROY = "destroy"
    ORCHESTRATION = "orchestration"
    """queue + place."""
    TAX = "tax"
    """The time of the trial without execution."""
    RESPONSE = "response"
    """From the intended start to the end: service time plus lateness."""
    LATENESS = "lateness"
    """The delay between the planned start and the start."""

    @property
    def heading(self) -> str:
        """The name for headings and axes."""
        return _HEADINGS[self]

    def of(self, trial: Trial) -> float | None:
        """This metric of one trial, in milliseconds; None where the trial does not have it."""
        value_ns = _READERS[self](trial)
        return None if value_ns is None else value_ns / NS_PER_MS


_HEADINGS: Final = {
    Metric.FIRST_OBSERVATION: "Time to first observation",
    Metric.TRAJECTORY: "Trajectory completion time",
    Metric.AMORTISED_ACTION: "Amortised time per action",
    Metric.ACTION: "Action latency",
    Metric.ACTION_TAX: "Tax per action",
    Metric.MEAN_ACTION_TAX: "Mean tax per action",
    Metric.CREATE: "Creation",
    Metric.READY: "Readiness",
    Metric.SETUP: "Set-up",
    Metric.DESTROY: "Destruction",
    Metric.ORCHESTRATION: "Orchestration",
    Metric.TAX: "Tax of the trajectory",
    Metric.RESPONSE: "Response time",
    Metric.LATENESS: "Lateness",
}


def _phase(*phases: Phase) -> Callable[[Trial], float | None]:
    """Read the sum of these phases; None if it is zero, because the trial then has no such part."""
    return lambda trial: sum(trial.by_phase.get(phase, 0) for phase in phases) or None


def _of_actions(
    centre: Callable[[list[int]], float], part: Callable[[ActionRecord], int]
) -> Callable[[Trial], float | None]:
    return lambda trial: centre([part(action) for action in trial.actions]) if trial.actions else None


_READERS: Final[dict[Metric, Callable[[Trial], float | None]]] = {
    Metric.FIRST_OBSERVATION: lambda trial: trial.first_observation_ns,
    Metric.TRAJECTORY: lambda trial: trial.wall_ns,
    Metric.AMORTISED_ACTION: lambda trial: trial.wall_ns / len(trial.actions) if trial.actions else None,
    Metric.ACTION: _of_actions(median, lambda action: action.latency_ns),
    Metric.ACTION_TAX: _of_actions(median, lambda action: action.tax_ns),
    Metric.MEAN_ACTION_TAX: _of_actions(fmean, lambda action: action.tax_ns),
    Metric.CREATE: _phase(Phase.CREATE),
    Metric.READY: _phase(Phase.READY),
    Metric.SETUP: _phase(Phase.SETUP),
    Metric.DESTROY: _phase(Phase.DESTROY),
    Metric.ORCHESTRATION: _phase(Phase.QUEUE, Phase.PLACE),
    Metric.TAX: lambda trial: trial.wall_ns - trial.by_phase.get(Phase.EXECUTE, 0),
    Metric.RESPONSE: lambda trial: trial.response_ns if trial.condition.concurrency > 1 else None,
    Metric.LATENESS: lambda trial: trial.late_ns if trial.condition.concurrency > 1 else None,
}
