"""Requests that wait for a sandbox: one queue for each wanted state, fair between owners, with one bound for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Generic, TypeVar

from dutyfree.errors import CapacityError
from dutyfree.leases.table import NO_LABELS
from dutyfree.pool.goal import Goal
from dutyfree.pool.state import State
from dutyfree.values import dataclass

G = TypeVar("G", bound=Goal)
K = TypeVar("K")

MIN_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 60.0
UNKNOWN_INTERVAL_S: Final = 1.0
"""The assumed time between two served requests before any was measured."""
_WEIGHT: Final = 0.2
"""The weight of the newest interval in the running mean of intervals."""


@dataclass(eq=False, slots=True)
class Request(Generic[G]):
    """One call of `acquire`, until it is granted or refused."""

    goal: G
    owner: str
    ttl_s: float
    key: str | None
    since_s: float
    deadline_s: float
    rung: str = ""
    """The rung on which the router found a sandbox: `hit` is the wanted state, `cold` means that it found none."""
    failures: int = 0
    """Failed operations for this request."""
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)

    @property
    def state(self) -> State:
        """The wanted state."""
        return self.goal.ladder.top


class Pace:
    """Measures how fast requests are served, to say when a refused caller should retry."""

    def __init__(self) -> None:
        self._interval_s = UNKNOWN_INTERVAL_S
        self._last_s: float | None = None
        """When the last request was served. None if no request waited after it: idle time is not service time."""
        self._refused = 0
        """Refused callers for which no place in the queue has become free yet."""

    @property
    def retry_after_s(self) -> float:
        """When a caller that is refused now should retry.

        Places become free one at a time. So each refused caller gets a later time than the one before, by the mean time
        between two served requests. If all retried at the same time, all but one would be refused again.
        """
        return min(max(self._interval_s * (self._refused + 1), MIN_RETRY_S), MAX_RETRY_S)

    def refusal(self, message: str) -> CapacityError:
        """The error for a caller that is refused now."""
        after_s = self.retry_after_s
        if after_s < MAX_RETRY_S:
            self._refused += 1
        return CapacityError(message, hint=f"try again in {after_s:.2g} s", retry_after_s=after_s)

    def freed(self) -> None:
        """Note that a place in the queue has become free."""
        self._refused = max(0, self._refused - 1)

    def served(self, now_s: float, *, others_wait: bool) -> None:
        """Note that a request was served."""
        if self._last_s is not None:
            self._interval_s += _WEIGHT * (max(0.0, now_s - self._last_s) - self._interval_s)
        self._last_s = now_s if others_wait else None


@dataclass(slots=True)
class _Line(Generic[G]):
    """The requests of one owner for one state, first come first served."""

    turn: int
    """The turn in which this owner was served last for this state, or began to wait. The smallest is served next."""
    requests: dict[Request[G], None] = field(default_factory=dict)


class RequestQueue(Generic[G]):
    """All waiting requests: at most `capacity`, and at most `per_owner` of each owner.

    The queue serves the owner with the fewest leases first (`active` has the number of leases of each owner); among
    equals, the owner that was served least recently. It serves the requests of one owner in the order in which they
    came.

    One owner cannot keep others out of the queue. When the queue is full, a new request displaces the last request of
    the owner with the most requests, if the owner of the new one has at least two requests fewer. With a difference of
    one, the two owners would displace each other in turn.
    """

    def __init__(self, capacity: int, per_owner: int | None, active: Mapping[str, int]) -> None:
        self._capacity = capacity
        self._per_owner = per_owner if per_owner is not None else capacity
        self._active = active
        self._pace = Pace()
        self._lines: dict[State, dict[str, _Line[G]]] = {}
        self._by_owner: dict[str, dict[Request[G], None]] = {}
        self._by_state: dict[State, dict[Request[G], None]] = {}
        self._count = 0
        self._turns = 0

    def __len__(self) -> int:
        return self._count

    def push(self, request: Request[G]) -> tuple[Request[G], CapacityError] | None:
        """Add a request. Returns the request that it has displaced, if any, with the error for the caller of that one.

        Raises CapacityError, with `retry_after_s`, when the queue or the owner's part of it is full.
        """
        own = self._by_owner.get(request.owner, {})
        if len(own) >= self._per_owner:
            raise self._pace.refusal(f"{len(own)} requests of {request.owner!r} wait already")
        displaced = self._displace(len(own)) if self._count >= self._capacity else None
        self._turns += 1
        state, owner = request.state, request.owner
        lines = self._lines.setdefault(state, {})
        if owner not in lines:
            lines[owner] = _Line(self._turns)
        lines[owner].requests[request] = None
        self._by_owner.setdefault(owner, {})[request] = None
        self._by_state.setdefault(state, {})[request] = None
        self._count += 1
        return displaced

    def pop(self, state: State, now_s: float) -> Request[G] | None:
        """Remove and return the next request for this state; requests past their deadline stay in the queue."""
        lines = self._lines.get(state)
        if lines is None:
            return None
        in_order = list(lines.items())
        if len(in_order) > 1:
            in_order.sort(key=lambda each: (self._active.get(each[0], 0), each[1].turn))
        for _, line in in_order:
            request = next((each for each in line.requests if each.deadline_s > now_s), None)
            if request is not None:
                self._turns += 1
                line.turn = self._turns
                self.remove(request)
                self._pace.served(now_s, others_wait=state in self._by_state)
                return request
        return None

    def remove(self, request: Request[G]) -> bool:
        """Remove a request. Returns False if it was not in the queue."""
        state, owner = request.state, request.owner
        if request not in self._by_state.get(state, ()):
            return False
        lines = self._lines[state]
        line = lines[owner].requests
        del line[request]
        if not line:
            del lines[owner]
        _discard(self._by_owner, owner, request)
        _discard(self._by_state, state, request)
        if not lines:
            del self._lines[state]
        self._count -= 1
        self._pace.freed()
        return True

    def first(self, state: State) -> Request[G] | None:
        """The oldest request for this state."""
        return next(iter(self._by_state.get(state, ())), None)

    def all(self, state: State | None = None) -> list[Request[G]]:
        """All requests, or all requests for one state."""
        if state is not None:
            return list(self._by_state.get(state, ()))
        return [request for requests in self._by_state.values() for request in requests]

    def counts(self) -> dict[State, int]:
        """The number of requests for each state; the state of the request that is served next comes first."""
        return {state: len(self._by_state[state]) for state in sorted(self._by_state, key=self._urgency)}

    def next_state(self) -> State | None:
        """The state of the request that is served next; None if no request waits."""
        if len(self._by_state) == 1:
            return next(iter(self._by_state))
        return min(self._by_state, key=self._urgency, default=None)

    def _urgency(self, state: State) -> tuple[int, float]:
        """The sort key of states: the fewest leases of an owner that waits for it, then its oldest request."""
        owners = self._lines[state]
        return min(self._active.get(owner, 0) for owner in owners), next(iter(self._by_state[state])).since_s

    def _displace(self, own: int) -> tuple[Request[G], CapacityError]:
        """Make room for an owner that has `own` requests in the queue, or raise CapacityError."""
        owner, longest = max(self._by_owner.items(), key=lambda each: len(each[1]), default=("", {}))
        if len(longest) < own + 2:
            raise self._pace.refusal(f"{self._count} requests wait already")
        last = next(reversed(longest))
        self.remove(last)
        return last, self._pace.refusal(f"the queue is full, and {owner!r} has the most requests in it")


def _discard(table: dict[K, dict[Request[G], None]], key: K, request: Request[G]) -> None:
    requests = table[key]
    del requests[request]
    if not requests:
        del table[key]
