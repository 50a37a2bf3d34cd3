"""Requests that wait for a sandbox: one fair queue for each state that is wanted, and one bound for all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from dutyfree.pool.admission import FairQueue, Pace
from dutyfree.pool.binding import Binding
from dutyfree.pool.ladders import Wanted
from dutyfree.pool.roster import Member
from dutyfree.pool.state import State


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants of a pool."""

    wanted: Wanted
    owner: str
    key: str | None
    ttl_s: float
    timeout_s: float
    binding: Binding


class Request:
    """Somebody waits: `member` will be theirs, or an error."""

    def __init__(self, asked: Asked, since_s: float) -> None:
        self.asked = asked
        self.owner = asked.owner
        self.since_s = since_s
        self.deadline_s = since_s + asked.timeout_s
        self.member: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self.failures = 0
        """Of works that were to serve it."""

    @property
    def state(self) -> State:
        """What is wanted."""
        return self.asked.wanted.ladder.top


class Waiting:
    """All requests that wait, `capacity` of them at most, `per_owner` of each owner.

    `active` says how many leases each owner has: who has few is served first. An owner cannot fill the queue against
    the others: to one who has at least two requests less, the owner with the most loses its last.
    """

    def __init__(self, capacity: int, per_owner: int | None, active: Mapping[str, int]) -> None:
        self._capacity = capacity
        self._per_owner = per_owner if per_owner is not None else capacity
        self._active = active
        self._pace = Pace()
        self._queues: dict[State, FairQueue[Request]] = {}
        self._owners: dict[str, dict[Request, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, request: Request) -> None:
        """Let it wait. Raises CapacityError, which says when to come back, if too many do."""
        own = self._owners.get(request.owner, {})
        if len(own) >= self._per_owner:
            raise self._pace.refusal(f"{len(own)} requests of {request.owner!r} wait already")
        if self._count >= self._capacity:
            self._displace(len(own))
        queue = self._queues.get(request.state)
        if queue is None:
            queue = self._queues[request.state] = FairQueue(self._capacity, pace=self._pace)
        queue.push(request, request.owner, request.deadline_s)
        self._owners.setdefault(request.owner, {})[request] = None
        self._count += 1

    def pop(self, state: State, now_s: float) -> Request | None:
        """Whoever is next of those that want this state."""
        queue = self._queues.get(state)
        if queue is None:
            return None
        request = queue.pop(self._active, lambda each: not each.member.done(), now_s=now_s)
        if request is not None:
            self._forget(request)
        return request

    def remove(self, request: Request) -> None:
        """It waits no longer; does nothing if it was served."""
        queue = self._queues.get(request.state)
        if queue is not None and queue.remove(request):
            self._forget(request)

    def first(self, state: State) -> Request | None:
        """The oldest request for this state."""
        return next(iter(self._queues.get(state, ())), None)

    def all(self, state: State | None = None) -> list[Request]:
        """Every request, or every one for this state."""
        queues = self._queues.values() if state is None else filter(None, [self._queues.get(state)])
        return [request for queue in queues for request in queue]

    def counts(self) -> dict[State, int]:
        """How many want each state; first what the one wants whose turn is next."""
        return {state: len(self._queues[state]) for state in sorted(self._queues, key=self._turn)}

    def next_state(self) -> State | None:
        """What the one wants whose turn is next; None if nobody waits."""
        return min(self._queues, key=self._turn, default=None)

    def _turn(self, state: State) -> tuple[int, float]:
        """Those with the fewest leases come first, and among them who has waited longest."""
        queue = self._queues[state]
        return min(self._active.get(owner, 0) for owner in queue.waiting()), next(iter(queue)).since_s

    def _displace(self, own: int) -> None:
        """Make room for somebody who has `own` requests here, or raise CapacityError."""
        owner, longest = max(self._owners.items(), key=lambda each: len(each[1]), default=("", {}))
        if len(longest) < own + 2:
            raise self._pace.refusal(f"{self._count} requests wait already")
        last = next(reversed(longest))
        self.remove(last)
        if not last.member.done():
            last.member.set_exception(
                self._pace.refusal(f"the queue is full, and others have fewer in it than {owner!r}")
            )

    def _forget(self, request: Request) -> None:
        self._count -= 1
        del self._owners[request.owner][request]
        if not self._owners[request.owner]:
            del self._owners[request.owner]
        if not len(self._queues[request.state]):
            del self._queues[request.state]
