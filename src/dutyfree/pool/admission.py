"""Whose turn it is: a bounded queue that is fair between owners, and takes its time from whoever asks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from dutyfree.errors import CapacityError, InvalidRequest

T = TypeVar("T", bound=Hashable)

LOOK_AHEAD: Final = 4
MAX_OVERTAKEN: Final = 16
MIN_RETRY_S: Final = 0.05
MAX_RETRY_S: Final = 60.0
UNKNOWN_INTERVAL_S: Final = 1.0
"""Between two services, before any was seen."""
_WEIGHT: Final = 0.2
_STALE_DEADLINES: Final = 64


@dataclass(frozen=True, slots=True)
class _Request(Generic[T]):
    item: T
    owner: str
    deadline_s: float
    number: int


@dataclass(slots=True)
class _Line(Generic[T]):
    """What one owner waits for, first come first served."""

    turn: int
    """Since when the owner waits for its next turn."""
    requests: dict[int, _Request[T]] = field(default_factory=dict)
    overtaken: int = 0
    """How many requests were served before the first one that had come after it."""


class Pace:
    """How fast requests are served, and thus when it is worth coming back. One will do for several queues."""

    def __init__(self) -> None:
        self._interval_s = UNKNOWN_INTERVAL_S
        self._last_s: float | None = None
        """Set while somebody waited from then on: idle time says nothing about how fast requests are served."""
        self._refused = 0
        """Those who were told to come back, and for whom no place has come free since."""

    @property
    def retry_after_s(self) -> float:
        """When somebody who is refused now should come back.

        Places come free one at a time, so that those who are refused are asked back one after the other, as far apart
        as requests have been served lately.
        """
        return min(max(self._interval_s * (self._refused + 1), MIN_RETRY_S), MAX_RETRY_S)

    def refusal(self, message: str) -> CapacityError:
        """The error for somebody who finds no place, with the time to come back at."""
        after_s = self.retry_after_s
        if after_s < MAX_RETRY_S:
            self._refused += 1
        return CapacityError(message, hint=f"try again in {after_s:.2g} s", retry_after_s=after_s)

    def freed(self) -> None:
        """A place has come free."""
        self._refused = max(0, self._refused - 1)

    def served(self, now_s: float, *, others_wait: bool) -> None:
        """A request was served now."""
        if self._last_s is not None:
            self._interval_s += _WEIGHT * (max(0.0, now_s - self._last_s) - self._interval_s)
        self._last_s = now_s if others_wait else None


class FairQueue(Generic[T]):
    """Requests that wait, at most `capacity` of them and `per_owner` of each owner.

    Served next is the owner with the fewest leases; among equals, the one that has waited longest for its turn. Within
    an owner, requests are served as they came; if the first cannot be served now, one of the `LOOK_AHEAD` after it may
    be, `MAX_OVERTAKEN` times at most. Pushing, removing and expiring are O(log n), serving is O(owners that wait).

    With `on_displaced`, no owner can fill the queue against the others: to one who has at least two requests less in a
    full queue, the owner with the most loses its last, and `on_displaced` is told which, and what to say of it.
    Queues can share a `pace`, from which those who are refused learn when to come back.
    """

    def __init__(
        self,
        capacity: int,
        *,
        per_owner: int | None = None,
        on_displaced: Callable[[T, CapacityError], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        if capacity < 0 or (per_owner is not None and per_owner < 1):
            raise InvalidRequest(f"a queue for {capacity} requests, {per_owner} of each owner")
        self.capacity = capacity
        self.per_owner = capacity if per_owner is None else per_owner
        self._on_displaced = on_displaced
        self._pace = pace if pace is not None else Pace()
        self._lines: dict[str, _Line[T]] = {}
        self._requests: dict[T, _Request[T]] = {}
        self._deadlines: list[tuple[float, int, T]] = []
        """A heap. A request that was served or removed leaves its entry behind, until it comes up."""
        self._clock = 0
        """Counts requests and services: an order, not a time."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[T]:
        """Everything that waits, as it came."""
        return iter(self._requests)

    def __contains__(self, item: object) -> bool:
        return item in self._requests

    def waiting(self) -> Mapping[str, int]:
        """How many requests of each owner wait."""
        return {owner: len(line.requests) for owner, line in self._lines.items()}

    def push(self, item: T, owner: str, deadline_s: float) -> None:
        """Let `item` wait until it is popped, removed or expired.

        Raises CapacityError, with `retry_after_s`, if the queue or the owner's part of it is full. RuntimeError if the
        item waits already: that is a mistake of the pool.
        """
        if item in self._requests:
            raise RuntimeError(f"{item!r} waits already")
        self._make_room(owner)
        number = self._tick()
        line = self._lines.setdefault(owner, _Line(turn=number))
        request = _Request(item, owner, deadline_s, number)
        line.requests[number] = self._requests[item] = request
        self._expect(request)

    def pop(self, active: Mapping[str, int], accept: Callable[[T], bool], *, now_s: float | None = None) -> T | None:
        """Take out the next request that `accept` says yes to; None if there is none.

        `active` says how many leases each owner has. With `now_s`, requests past their deadline are left to `expire`,
        and the time between services is learned.
        """
        turns = [(active.get(owner, 0), line.turn, owner) for owner, line in self._lines.items()]
        heapq.heapify(turns)
        while turns:
            _, _, owner = heapq.heappop(turns)
            request = self._next_of(self._lines[owner], accept, now_s)
            if request is not None:
                self._serve(request, now_s)
                return request.item
        return None

    def expire(self, now_s: float) -> list[T]:
        """Take out all whose deadline has come, the earliest first."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number, item = heapq.heappop(self._deadlines)
            request = self._requests.get(item)
            if request is not None and request.number == number:
                self._take(request)
                late.append(item)
        return late

    @property
    def next_deadline_s(self) -> float | None:
        """When `expire` is to be asked next; it may turn out that nothing is late. None if nobody waits."""
        return self._deadlines[0][0] if self._requests else None

    def remove(self, item: T) -> bool:
        """Take out a request that nobody waits for any more; False if it was not there."""
        request = self._requests.get(item)
        if request is None:
            return False
        self._take(request)
        return True

    @property
    def retry_after_s(self) -> float:
        """When somebody who is refused now should come back."""
        return self._pace.retry_after_s

    def _make_room(self, owner: str) -> None:
        line = self._lines.get(owner)
        own = len(line.requests) if line is not None else 0
        if len(self._requests) < self.capacity:
            if own >= self.per_owner:
                raise self._pace.refusal(f"{own} requests of {owner!r} wait already; an owner can have no more")
            return
        longest = max(self._lines.values(), key=lambda each: len(each.requests), default=None)
        if self._on_displaced is None or longest is None or len(longest.requests) < own + 2:
            raise self._pace.refusal(f"the queue is full: {len(self._requests)} requests wait")
        last = longest.requests[next(reversed(longest.requests))]
        self._take(last)
        self._on_displaced(last.item, self._pace.refusal("the queue is full, and others have fewer requests in it"))

    def _next_of(self, line: _Line[T], accept: Callable[[T], bool], now_s: float | None) -> _Request[T] | None:
        looks = 1 if line.overtaken >= MAX_OVERTAKEN else 1 + LOOK_AHEAD
        for request in line.requests.values():
            if now_s is not None and request.deadline_s <= now_s:
                continue
            if accept(request.item):
                return request
            looks -= 1
            if not looks:
                break
        return None

    def _serve(self, request: _Request[T], now_s: float | None) -> None:
        line = self._lines[request.owner]
        line.overtaken += 1
        line.turn = self._tick()
        self._take(request)
        if now_s is not None:
            self._pace.served(now_s, others_wait=bool(self._requests))

    def _take(self, request: _Request[T]) -> None:
        del self._requests[request.item]
        line = self._lines[request.owner]
        if next(iter(line.requests)) == request.number:
            line.overtaken = 0
        del line.requests[request.number]
        if not line.requests:
            del self._lines[request.owner]
        self._pace.freed()

    def _expect(self, request: _Request[T]) -> None:
        heapq.heappush(self._deadlines, (request.deadline_s, request.number, request.item))
        if len(self._deadlines) > 2 * len(self._requests) + _STALE_DEADLINES:
            self._deadlines = [(each.deadline_s, each.number, each.item) for each in self._requests.values()]
            heapq.heapify(self._deadlines)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
