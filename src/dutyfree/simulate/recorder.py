"""Taking down what a real pool does, as records that `recording` reads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.demand import Announcement
from dutyfree.pool.planner_input import Abilities, Limits
from dutyfree.pool.routing import Policy
from dutyfree.pool.state import Ladder, State

Write = Callable[[Mapping[str, Any]], None]
"""`JournalWriter.append`, or that of a list."""


class RecordedCosts(Costs):
    """The costs of a pool; each observation is also passed to `on_observation`."""

    def __init__(self, on_observation: Callable[[Step, float], None]) -> None:
        super().__init__()
        self._on_observation = on_observation

    def observe(self, operation: Step, seconds: float) -> None:
        """As `Costs.observe`."""
        super().observe(operation, seconds)
        self._on_observation(operation, seconds)


class Recorder:
    """Writes records of one run. Times are those of the clock that the pool uses."""

    def __init__(self, write: Write, now: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._now = now
        self._start_s = now()
        self._names: dict[State, str] = {}

    def pool(self, limits: Limits, abilities: Abilities, policy: Policy, *, knows_costs: bool = False) -> None:
        """The pool, before anything else."""
        made_at_once = {"sandboxes": limits.sandboxes, "at_once": limits.at_once, "cores": os.cpu_count() or 1}
        able = {"reset": abilities.reset, "images": abilities.images}
        self._write({"kind": "pool", "policy": str(policy), **made_at_once, **able, "knows_costs": knows_costs})

    def announced(self, announcement: Announcement, ladder: Ladder, now_s: float) -> None:
        """Record an announcement."""
        times = {"at_s": self._since(now_s), "from_s": self._since(announcement.at_s)}
        times["until_s"] = self._since(announcement.until_s)
        self._write({"kind": "announced", "ladder": self._name(ladder), "count": announcement.count, **times})

    def requested(
        self, ladder: Ladder, asked_s: float, readiness_s: float | None, hold_s: float, rung: str = ""
    ) -> None:
        """Record a request, which got a sandbox after `readiness_s`, or none."""
        record = {"kind": "request", "at_s": self._since(asked_s), "ladder": self._name(ladder), "hold_s": hold_s}
        self._write(record if readiness_s is None else {**record, "readiness_s": readiness_s, "rung": rung})

    def took(self, operation: Step, seconds: float) -> None:
        """The pool has measured an operation, which has just ended; see `RecordedCosts`."""
        record = {"kind": "took", "operation": operation.kind, "digest": operation.digest, "seconds": seconds}
        self._write({**record, "at_s": self._since(self._now())})

    def _name(self, ladder: Ladder) -> str:
        """Ladders are written when they are named for the first time."""
        name = self._names.get(ladder.top)
        if name is None:
            name = self._names[ladder.top] = f"ladder {len(self._names) + 1}"
            digests = list(ladder.top.digests)
            self._write({"kind": "ladder", "name": name, "rungs": list(ladder.names), "digests": digests})
        return name

    def _since(self, moment_s: float) -> float:
        return max(0.0, moment_s - self._start_s)
