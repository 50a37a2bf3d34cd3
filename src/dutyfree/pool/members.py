"""The sandboxes of a pool and the operations on them. Records only: no I/O, no decisions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from dutyfree.pool.goal import Goal
from dutyfree.pool.planner_input import Idle, Operation, OperationKind, Returned
from dutyfree.pool.size import NO_SIZE, Size
from dutyfree.pool.state import State
from dutyfree.values import dataclass

G = TypeVar("G", bound=Goal)


@dataclass(eq=False, slots=True)
class Member(Generic[G]):
    """A sandbox of the pool."""

    id: str
    goal: G
    """The goal for which it was made or promoted; its state is on the ladder of the goal."""
    state: State
    made_in: State
    """The state after a reset."""
    size: Size = NO_SIZE
    begun_s: float = 0.0
    """When the last operation on it began."""


@dataclass(eq=False, slots=True)
class Running(Generic[G]):
    """An operation in progress, with its goal and its sandbox."""

    operation: Operation
    goal: G
    member: Member[G] | None
    """None for a creation: the sandbox does not exist yet."""


class Members(Generic[G]):
    """Records which sandboxes are idle, returned and leased, and which operations run.

    A sandbox is in exactly one of these places. Of forks, only the number is recorded: they belong to the lease, not to
    the pool.
    """

    def __init__(self) -> None:
        self._idle: dict[State, list[Idle]] = {}
        self._members: dict[str, Member[G]] = {}
        """Idle and returned sandboxes: the ones that the planner may command."""
        self._returned: dict[str, Returned] = {}
        self._leased: dict[str, Member[G]] = {}
        self._leased_size = NO_SIZE
        """The total size of `_leased`. Every plan needs it, so that it is not computed anew each time."""
        self._running: dict[int, Running[G]] = {}
        self.busy = 0
        """Operations in progress that `Limits.at_once` bounds: all but destructions."""
        self._numbers = itertools.count(1)
        self._idle_s: defaultdict[str, float] = defaultdict(float)
        self.forks: dict[str, int] = {}
        """Forks that exist or are being made, by the id of the leased sandbox."""

    @property
    def idle(self) -> Mapping[State, Sequence[Idle]]:
        """Idle sandboxes by state, the one that has been idle longest first."""
        return self._idle

    @property
    def all_idle(self) -> Iterator[Idle]:
        """Every idle sandbox."""
        return itertools.chain.from_iterable(self._idle.values())

    @property
    def returned(self) -> tuple[Returned, ...]:
        """Sandboxes whose lease has ended, before their reset or destruction begins."""
        return tuple(self._returned.values())

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations in progress, in the order in which they began."""
        return tuple(running.operation for running in self._running.values())

    @property
    def leased(self) -> int:
        """The number of leased sandboxes and of their forks."""
        return len(self._leased) + sum(self.forks.values())

    @property
    def leased_size(self) -> Size:
        """The total size of leased sandboxes and their forks; a fork counts as much as its parent."""
        total = self._leased_size
        for sandbox, count in self.forks.items():
            total += self._leased[sandbox].size * count
        return total

    @property
    def total_size(self) -> Size:
        """The total size of all sandboxes, also of those that are being created or destroyed."""
        sizes = [member.size for member in self._members.values()]
        sizes += [running.operation.size for running in self._running.values()]
        return sum(sizes, self.leased_size)

    @property
    def count(self) -> int:
        """The number of all sandboxes, also of those that are being created or destroyed."""
        return len(self._members) + len(self._running) + self.leased

    def creations(self, state: State) -> list[int]:
        """The numbers of the creations in progress for this state, the latest last."""
        return [
            number
            for number, running in self._running.items()
            if running.operation.kind is OperationKind.CREATE and running.operation.state == state
        ]

    @property
    def has_free(self) -> bool:
        """Whether there are idle or returned sandboxes."""
        return bool(self._members)

    def ids(self) -> tuple[str, ...]:
        """The ids of all idle and returned sandboxes."""
        return tuple(self._members)

    def member(self, sandbox: str) -> Member[G]:
        """An idle or returned sandbox, by its id."""
        return self._members[sandbox]

    def leased_member(self, sandbox: str) -> Member[G]:
        """A leased sandbox, by its id."""
        return self._leased[sandbox]

    def put_idle(self, member: Member[G], now_s: float, clock: float) -> None:
        """Record that the sandbox is idle from now on; `clock` is the pool's eviction clock."""
        self._members[member.id] = member
        idle = Idle(member.id, member.state, member.made_in, now_s, member.size, clock)
        self._idle.setdefault(member.state, []).append(idle)

    def lease(self, member: Member[G]) -> None:
        """Record that the sandbox is leased from now on."""
        self._leased[member.id] = member
        self._leased_size += member.size

    def resize(self, member: Member[G], size: Size) -> None:
        """Record the measured size of a leased sandbox."""
        self._leased_size += size - member.size
        member.size = size

    def put_returned(self, member: Member[G]) -> None:
        """Record that the sandbox's lease has ended; its forks are gone by now."""
        del self._leased[member.id]
        self._leased_size -= member.size
        self.forks.pop(member.id, None)
        self._members[member.id] = member
        self._returned[member.id] = Returned(member.id, member.made_in, member.size)

    def take(self, sandbox: str, now_s: float) -> Member[G]:
        """Remove a sandbox from the idle or returned ones, to lease it or to begin an operation on it."""
        member = self._members.pop(sandbox)
        if self._returned.pop(sandbox, None) is None:
            idle = self._idle[member.state]
            place = next(place for place, each in enumerate(idle) if each.sandbox == sandbox)
            self._idle_s[member.goal.ladder.name_of(member.state)] += now_s - idle.pop(place).since_s
            if not idle:
                del self._idle[member.state]
        return member

    def begin(self, operation: Operation, goal: G, member: Member[G] | None) -> int:
        """Record that an operation has begun; returns the number that `end` takes."""
        number = next(self._numbers)
        self._running[number] = Running(operation, goal, member)
        self.busy += operation.kind is not OperationKind.DESTROY
        return number

    def end(self, number: int) -> Running[G]:
        """Record that an operation has ended."""
        running = self._running.pop(number)
        self.busy -= running.operation.kind is not OperationKind.DESTROY
        return running

    def idle_s(self, now_s: float) -> dict[str, float]:
        """The total time that sandboxes have been idle, by rung: the price of keeping them warm."""
        totals = dict(self._idle_s)
        for each in self.all_idle:
            name = self._members[each.sandbox].goal.ladder.name_of(each.state)
            totals[name] = totals.get(name, 0.0) + now_s - each.since_s
        return totals
