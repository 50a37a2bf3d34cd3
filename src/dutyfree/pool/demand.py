"""The demand for sandboxes: announcements of future requests, and the record of past arrivals."""

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
"""States whose arrivals are recorded. Above this number, the state with the oldest last request is forgotten."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A caller will request `count` sandboxes in `state`, from `at_s` on. It lapses after `until_s`."""

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
    """Announcements and arrivals. The caller gives the time, which never runs backwards."""

    def __init__(self) -> None:
        self._announced: dict[str, _Announced] = {}
        self._in_order: list[_Announced] = []
        self._by_state: dict[State, list[_Announced]] = {}
        self._wanted: dict[State, History] = {}
        """Requests for exactly this state."""
        self._by_prefix: dict[State, History] = {}
        """Requests for this state or for one that begins with it. A sandbox in this state can serve all of them, so
        that lower stages, which many recipes share, have more demand and live longer."""
        self._number = 0

    def announce(self, announcements: Iterable[Announcement], now_s: float) -> None:
        """Record future demand. Announcements for the same time are served in the order in which they were given.

        Idempotent: a known id replaces the earlier announcement, and the requests that arrived for it stay counted.
        Raises CapacityError above `MAX_ANNOUNCEMENTS`, and then records none of them.
        """
        self._forget_lapsed(now_s)
        given = {each.id: each for each in announcements}
        if len(self._announced.keys() | given.keys()) > MAX_ANNOUNCEMENTS:
            raise CapacityError(f"at most {MAX_ANNOUNCEMENTS} announcements are kept", hint="announce larger counts")
        for new in given.values():
            known = self._remove(new.id)
            if known is None:
                self._number += 1
                entry = _Announced((new.at_s, self._number), new)
            else:
                entry = _Announced((new.at_s, known.order[1]), new)
                entry.arrived = known.arrived if known.announcement.state == new.state else 0
            self._announced[new.id] = entry
            insort(self._in_order, entry, key=_order)
            insort(self._by_state.setdefault(new.state, []), entry, key=_order)

    def withdraw(self, id: str) -> None:
        """Remove an announcement. Does nothing for an unknown id."""
        self._remove(id)

    def arrived(self, state: State, now_s: float) -> bool:
        """Record a request for a state. Returns whether it was announced; the announcement then expects one less."""
        announced = self._consume(state, now_s)
        _remember(self._wanted, state, now_s, announced)
        for prefix in rungs_of(state):
            _remember(self._by_prefix, prefix, now_s, announced)
        return announced

    def announced(self, now_s: float) -> list[tuple[State, int, float]]:
        """Announced requests that have not arrived yet: state, count and time, in the order of their times."""
        return [
            (each.announcement.state, each.announcement.count - each.arrived, each.announcement.at_s)
            for each in self._in_order
            if each.announcement.until_s >= now_s and each.arrived < each.announcement.count
        ]

    def needed(self, state: State, lead_s: float, now_s: float, quantile: float) -> int:
        """The number of sandboxes that should be ready for unannounced requests, if a creation takes `lead_s`.

        The newsvendor quantile: the smallest number that was enough for a share `quantile` of the requests that came
        after a gap like the present one. It is at least the mean number of creations in progress by Little's law.
        """
        past = self.past(state, lead_s)
        if past is None:
            return 0
        return max(past.likely(now_s - past.last_s).quantile(quantile), past.concurrent_creations(lead_s))

    def recent(self, since_s: float) -> Iterator[State]:
        """The states that were requested at `since_s` or later, the most recently requested first."""
        for state, history in reversed(self._wanted.items()):
            if history.last_s < since_s:
                return
            yield state

    def past(self, state: State, lead_s: float, *, exact: bool = False) -> Past | None:
        """The past requests for a state or for one that begins with it; None if there were none.

        With `exact`, only the requests for exactly this state: no sandbox with further stages can serve them.
        """
        history = (self._wanted if exact else self._by_prefix).get(state)
        return None if history is None else history.past(lead_s)

    def _consume(self, state: State, now_s: float) -> bool:
        for each in self._by_state.get(state, ()):
            if each.announcement.until_s >= now_s and each.arrived < each.announcement.count:
                each.arrived += 1
                return True
        return False

    def _remove(self, id: str) -> _Announced | None:
        known = self._announced.pop(id, None)
        if known is not None:
            self._in_order.remove(known)
            same_state = self._by_state[known.announcement.state]
            same_state.remove(known)
            if not same_state:
                del self._by_state[known.announcement.state]
        return known

    def _forget_lapsed(self, now_s: float) -> None:
        for each in [each for each in self._in_order if each.announcement.until_s < now_s]:
            self._remove(each.announcement.id)


@dataclass(slots=True, eq=False)
class _Announced:
    """An announcement, and the number of its requests that have arrived."""

    order: tuple[float, int]
    """The sort key: the announced time, then the order of announcing."""
    announcement: Announcement
    arrived: int = 0


def _remember(histories: dict[State, History], state: State, now_s: float, announced: bool) -> None:
    history = histories.pop(state, None) or History()
    history.add(now_s, announced)
    histories[state] = history  # a dict keeps insertion order: the state with the oldest last request is at the front
    if len(histories) > MAX_STATES:
        del histories[next(iter(histories))]


def _order(announced: _Announced) -> tuple[float, int]:
    return announced.order
