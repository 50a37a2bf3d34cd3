"""Who is going to ask for what: as announced, and as the past lets expect."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.pool.arrivals import History, Past
from dutyfree.pool.state import State, rungs_of

MAX_ANNOUNCEMENTS: Final = 16384
MAX_STATES: Final = 4096
"""Whose arrivals are remembered; past that, those are forgotten that nobody asked for in the longest time."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Somebody will want `count` sandboxes in a state, from `at_s` on; after `until_s` nobody waits for them."""

    id: str
    state: State
    count: int
    at_s: float
    until_s: float

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:  # type: ignore[redundant-expr]  # not all check types
            raise InvalidRequest(f"an announcement of {self.count} sandboxes", hint="withdraw it instead")
        if not (math.isfinite(self.at_s) and math.isfinite(self.until_s) and self.at_s <= self.until_s):
            raise InvalidRequest(f"an announcement from {self.at_s} until {self.until_s}: it must end after it begins")


class Demand:
    """Announcements and arrivals. Time is what callers say it is; it never runs backwards."""

    def __init__(self) -> None:
        self._announced: dict[str, _Announced] = {}
        self._in_order: list[_Announced] = []
        self._by_state: dict[State, list[_Announced]] = {}
        self._wanted: dict[State, History] = {}
        """Of those who want just this state."""
        self._passing: dict[State, History] = {}
        """Of those who want this state or one that begins with it."""
        self._number = 0

    def announce(self, announcements: Iterable[Announcement], now_s: float) -> None:
        """Take note of demand to come; of what is wanted at the same time, what is given first is made first.

        Idempotent: an id that is known replaces what was said under it, and those who came for it stay counted.
        Raises CapacityError, with nothing changed, past `MAX_ANNOUNCEMENTS`.
        """
        self._forget_lapsed(now_s)
        given = {each.id: each for each in announcements}
        if len(self._announced.keys() | given.keys()) > MAX_ANNOUNCEMENTS:
            raise CapacityError(f"at most {MAX_ANNOUNCEMENTS} announcements are kept", hint="announce larger counts")
        for said in given.values():
            known = self._remove(said.id)
            if known is None:
                self._number += 1
                entry = _Announced((said.at_s, self._number), said)
            else:
                entry = _Announced((said.at_s, known.order[1]), said)
                entry.arrived = known.arrived if known.said.state == said.state else 0
            self._announced[said.id] = entry
            insort(self._in_order, entry, key=_order)
            insort(self._by_state.setdefault(said.state, []), entry, key=_order)

    def withdraw(self, id: str) -> None:
        """Nobody will come for it; does nothing if it is not known."""
        self._remove(id)

    def arrived(self, state: State, now_s: float) -> bool:
        """Somebody asks for a state. Returns whether that was announced; then one less is to come."""
        announced = self._consume(state, now_s)
        _remember(self._wanted, state, now_s, announced)
        for prefix in rungs_of(state):
            _remember(self._passing, prefix, now_s, announced)
        return announced

    def announced(self, now_s: float) -> list[tuple[State, int, float]]:
        """What is still to come: state, count and time, in the order in which it should be ready."""
        return [
            (each.said.state, each.said.count - each.arrived, each.said.at_s)
            for each in self._in_order
            if each.said.until_s >= now_s and each.arrived < each.said.count
        ]

    def needed(self, state: State, lead_s: float, now_s: float, quantile: float) -> int:
        """How many should be ready for those who come by a state unannounced, if it takes `lead_s` to make one.

        The newsvendor's answer: the smallest number that was enough for a share `quantile` of those who came after such
        a silence as there is now, and no less than Little's law has under way at any time.
        """
        past = self.past(state, lead_s)
        if past is None:
            return 0
        return max(past.likely(now_s - past.last_s).quantile(quantile), past.under_way(lead_s))

    def recent(self, since_s: float) -> Iterator[State]:
        """The states that somebody has wanted since then, the latest ones first."""
        for state, history in reversed(self._wanted.items()):
            if history.last_s < since_s:
                return
            yield state

    def past(self, state: State, lead_s: float, *, exact: bool = False) -> Past | None:
        """What is known of those who came for a state or for one that begins with it; None if nobody did.

        With `exact`, of those alone who wanted just this state: nothing that has more in it can serve them.
        """
        history = (self._wanted if exact else self._passing).get(state)
        return None if history is None else history.past(lead_s)

    def _consume(self, state: State, now_s: float) -> bool:
        for each in self._by_state.get(state, ()):
            if each.said.until_s >= now_s and each.arrived < each.said.count:
                each.arrived += 1
                return True
        return False

    def _remove(self, id: str) -> _Announced | None:
        known = self._announced.pop(id, None)
        if known is not None:
            self._in_order.remove(known)
            same = self._by_state[known.said.state]
            same.remove(known)
            if not same:
                del self._by_state[known.said.state]
        return known

    def _forget_lapsed(self, now_s: float) -> None:
        for each in [each for each in self._in_order if each.said.until_s < now_s]:
            self._remove(each.said.id)


@dataclass(slots=True, eq=False)
class _Announced:
    order: tuple[float, int]
    """When it is wanted; of what is wanted at the same time, what was announced first."""
    said: Announcement
    arrived: int = 0


def _remember(histories: dict[State, History], state: State, now_s: float, announced: bool) -> None:
    history = histories.pop(state, None) or History()
    history.add(now_s, announced)
    histories[state] = history  # at the end: what nobody asked for lately is at the front
    if len(histories) > MAX_STATES:
        del histories[next(iter(histories))]


def _order(announced: _Announced) -> tuple[float, int]:
    return announced.order
