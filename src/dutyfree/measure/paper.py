"""The numbers that the paper published: "The Rollout Infrastructure Tax in Coding-Agent Reinforcement Learning".

Only what its text and tables state is here; the values behind its figures are not published. Latencies there are
rounded to a tenth of a second and worker-hours to the hour, and one does not follow from the other: a million times
42.5 s is 11,806 h, not 11,811 h. So `Published.latency_s` is what the table prints, and `consistent_s` the latency, of
those that print the same, from which the table's worker-hours follow to the hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LONG_STEPS: Final = 150
LONG_WORKLOAD: Final = "T2"
"""The scale of Figure 6 and Table 2."""
TRAJECTORIES: Final = 1_000_000
FIGURE_6_TRAJECTORIES: Final = (10_000, 1_000_000)
ROUNDED_TO_S: Final = 0.1
"""The latencies of Table 2."""
COLD_START_SPREAD: Final = {"T0": 110.0, "T2": 1.9}
"""By workload: how many times slower the cloud VM starts cold than the hosted sandbox ("up to 110x", abstract;
"approximately 1.9x", section 4.2)."""
WORKER_HOURS_SPREAD: Final = 1.8
"""Slowest to fastest substrate at 150 steps (abstract)."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """A row of Table 1: what a delay adds to a million rollouts."""

    words: str
    per_rollout_s: float
    per_action_s: float
    steps: int
    worker_hours: int

    @property
    def latency_s(self) -> float:
        """The time that the delay adds to one trajectory."""
        return self.per_rollout_s + self.per_action_s * self.steps


TABLE_1: Final = (
    Overhead("1 s per rollout", 1.0, 0.0, 0, 278),
    Overhead("10 ms per action", 0.0, 0.010, LONG_STEPS, 417),
    Overhead("100 ms per action", 0.0, 0.100, LONG_STEPS, 4_167),
)


@dataclass(frozen=True, slots=True)
class Published:
    """A row of Table 2."""

    words: str
    latency_s: float
    """As printed, to a tenth."""
    worker_hours: int
    """As printed, to the hour."""
    consistent_s: float
    """Rounds to `latency_s`, and gives `worker_hours`."""


SLOWEST_S: Final = 42.5
FASTEST_S: Final = 23.4
SLOWEST: Final = Published("slowest substrate", SLOWEST_S, 11_811, 42.520)
FASTEST: Final = Published("fastest substrate", FASTEST_S, 6_495, 23.382)
DIFFERENCE: Final = Published("difference", 19.1, 5_316, 19.138)
TABLE_2: Final = (SLOWEST, FASTEST, DIFFERENCE)
