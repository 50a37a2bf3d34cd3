"""Estimates how long the rest of a study takes, from the trials so far. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dutyfree.measure.design.study import Condition

_NEWEST: Final = 0.3
"""The weight of a condition's newest trial against all earlier ones."""


class Pace:
    """Estimates the remaining trials from finished ones of the same condition, or else of the most similar one."""

    def __init__(self, pending: Iterable[Condition]) -> None:
        self._pending = Counter(pending)
        self._known_s: dict[Condition, float] = {}

    @property
    def left(self) -> int:
        """The number of trials that have not ended."""
        return self._pending.total()

    def note(self, condition: Condition, took_s: float) -> None:
        """Add a trial of this condition that ended; `took_s` includes preparation and clean-up."""
        before_s = self._known_s.get(condition, took_s)
        self._known_s[condition] = before_s + _NEWEST * (took_s - before_s)
        self.drop(condition)

    def drop(self, condition: Condition) -> None:
        """One trial of this condition will not be run."""
        self._pending[condition] -= 1

    def left_s(self) -> float | None:
        """The remaining time in seconds; None while no trial has ended."""
        if not self._known_s:
            return None
        return sum(count * self._estimate_s(condition) for condition, count in self._pending.items() if count > 0)

    def _estimate_s(self, wanted: Condition) -> float:
        if wanted in self._known_s:
            return self._known_s[wanted]
        for alike in (
            lambda each: (each.arm, each.workload) == (wanted.arm, wanted.workload),
            lambda each: each.workload == wanted.workload,
            lambda each: True,
        ):
            found = [seconds for condition, seconds in self._known_s.items() if alike(condition)]
            if found:
                return sum(found) / len(found)
        return 0.0
