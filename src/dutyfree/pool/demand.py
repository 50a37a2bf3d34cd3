"""The demand for sandboxes: announcements of future requests, and the record of past arrivals."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Final

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.pool import spreading
from dutyfree.pool.arrivals import History, Past
from dutyfree.pool.state import State, rungs_of
from dutyfree.values import dataclass

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
    group: str = ""
    """The entries of one announcement share a group: their requests may come in order or in turn (see `spreading`).
    Empty: it stands alone."""
    place: int = 0
    """Its place in the order of its group."""

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:  # type: ignore[redundant-expr]  # not all check types
            raise InvalidRequest(f"an announcement of {self.count} sandboxes", hint="withdraw it instead")
        if not (math.isfinite(self.at_s) and math.isfinite(self.until_s) and self.at_s <= self.until_s):
            raise InvalidRequest(f"an announcement from {self.at_s} until {self.until_s}: it must end after it begins")


class Demand:
    """Announcements and arrivals. The caller gives the time, which never runs backwards."""

    def __init__(self) -> None:
        self._announced: dict[str, Announced] = {}
        self._in_order: list[Announced] = []
        self._by_state: dict[State, list[Announced]] = {}
        self._groups: dict[str, Group] = {}
        self._wanted: dict[State, History] = {}
        """Requests for exactly this state."""
        self._by_prefix: dict[State, History] = {}
        """Requests for this state or for one that begins with it. A sandbox in this state can serve all of them, so
        that lower stages, which many recipes share, have more demand and live longer."""
        self._number = 0

    def announce(self, announcements: Iterable[Announcement], now_s: float) -> None:
        """Record future demand. Announcements for the same time are served in the order in which they were given, those
        of one group by their places.

        Idempotent: a known id replaces the earlier announcement, and the requests that arrived for it stay counted.
        Raises CapacityError above `MAX_ANNOUNCEMENTS`, and then records none of them.
        """
        self._forget_lapsed(now_s)
        given = {each.id: each for each in announcements}
        if len(self._announced.keys() | given.keys()) > MAX_ANNOUNCEMENTS:
            raise CapacityError(f"at most {MAX_ANNOUNCEMENTS} announcements are kept", hint="announce larger counts")
        for new in given.values():
            known = self._announced.get(new.id)
            group = known.group if known is not None and known.group.name == new.group else self._group(new.group)
            arrived = known.arrived if known is not None and known.announcement.state == new.state else 0
            entry = Announced((new.at_s, group.number, new.place), new, group, arrived)
            self._remove(new.id)
            self._announced[new.id] = entry
            if new.group:
                self._groups[new.group] = group
            insort(group.entries, entry, key=_order)
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
        return [(each.announcement.state, each.left, each.announcement.at_s) for each in self.open(now_s)]

    def open(self, now_s: float) -> list[Announced]:
        """The announcements for which requests are still expected, in the order of their times. Do not change them."""
        return [each for each in self._in_order if each.announcement.until_s >= now_s and each.left]

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
            if each.announcement.until_s >= now_s and each.left:
                each.arrive()
                return True
        return False

    def _group(self, name: str) -> Group:
        """The group of that name; a new one if there is none, or no name."""
        known = self._groups.get(name)
        if known is None:
            self._number += 1
            known = Group(self._number, name)
        return known

    def _remove(self, id: str) -> None:
        known = self._announced.pop(id, None)
        if known is not None:
            self._in_order.remove(known)
            known.group.entries.remove(known)
            if not known.group.entries:
                self._groups.pop(known.group.name, None)
            same_state = self._by_state[known.announcement.state]
            same_state.remove(known)
            if not same_state:
                del self._by_state[known.announcement.state]

    def _forget_lapsed(self, now_s: float) -> None:
        for each in [each for each in self._in_order if each.announcement.until_s < now_s]:
            self._remove(each.announcement.id)


@dataclass(slots=True, eq=False)
class Group:
    """The entries of one announcement, and whether their requests come in order."""

    number: int
    name: str
    entries: list[Announced] = field(default_factory=list)
    """In the order of their places."""
    in_a_row: int = spreading.AT_FIRST
    """The number of requests in a row that were for the first open entry."""

    def arrived(self, entry: Announced) -> None:
        """A request has come for this entry."""
        first = next((each for each in self.entries if each.left), entry)
        self.in_a_row = self.in_a_row + 1 if first is entry else spreading.OUT_OF_ORDER


@dataclass(slots=True, eq=False)
class Announced:
    """An announcement, and the number of its requests that have arrived."""

    order: tuple[float, int, int]
    """The sort key: the announced time, the order of announcing, the place in the group."""
    announcement: Announcement
    group: Group
    arrived: int
    left: int = field(init=False)
    """The number of requests that are still expected. A field, because every plan reads it of all announcements."""

    def __post_init__(self) -> None:
        self.left = max(0, self.announcement.count - self.arrived)

    def arrive(self) -> None:
        """One of its requests has come."""
        self.group.arrived(self)
        self.arrived += 1
        self.left -= 1


def _remember(histories: dict[State, History], state: State, now_s: float, announced: bool) -> None:
    history = histories.pop(state, None) or History()
    history.add(now_s, announced)
    histories[state] = history  # a dict keeps insertion order: the state with the oldest last request is at the front
    if len(histories) > MAX_STATES:
        del histories[next(iter(histories))]


def _order(announced: Announced) -> tuple[float, int, int]:
    return announced.order
