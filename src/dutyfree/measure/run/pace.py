"""How long what is left of a study will take, from how long it has taken so far. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dutyfree.measure.design.study import Condition

_NEWEST: Final = 0.3
"""How much the newest trial of a condition counts against all before it."""


class Pace:
    """Told of each trial that is over, it estimates the others: by their condition, or else by what is most like it."""

    def __init__(self, pending: Iterable[Condition]) -> None:
        self._pending = Counter(pending)
        self._known_s: dict[Condition, float] = {}

    @property
    def left(self) -> int:
        """Trials that are not over."""
        return self._pending.total()

    def note(self, condition: Condition, took_s: float) -> None:
        """One trial of this condition is over, and took so long with all that belongs to it."""
        before_s = self._known_s.get(condition, took_s)
        self._known_s[condition] = before_s + _NEWEST * (took_s - before_s)
        self.drop(condition)

    def drop(self, condition: Condition) -> None:
        """One trial of this condition will not be run."""
        self._pending[condition] -= 1

    def left_s(self) -> float | None:
        """Seconds; None while nothing is known."""
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
