"""The sandboxes of a pool: which there are, what each is doing, and what is being done. No I/O, no decisions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dutyfree.contract import Sandbox, SpanListener
from dutyfree.model import Span
from dutyfree.pool.ladders import Wanted
from dutyfree.pool.size import NO_SIZE, Size
from dutyfree.pool.state import State
from dutyfree.pool.view import Idle, Kind, Returned, Work


class Ear:
    """Hears the spans of a sandbox, and passes them on to whoever has it at the moment."""

    __slots__ = ("listener",)

    def __init__(self, listener: SpanListener | None = None) -> None:
        self.listener = listener

    def __call__(self, span: Span) -> None:
        if self.listener is not None:
            self.listener(span)


@dataclass(eq=False, slots=True)
class Member:
    """A sandbox of the pool."""

    sandbox: Sandbox
    wanted: Wanted
    """Why it was made; its states lie on the way there."""
    state: State
    made_in: State
    ear: Ear = field(default_factory=Ear)
    size: Size = NO_SIZE

    @property
    def id(self) -> str:
        """The sandbox's name."""
        return self.sandbox.id


class Roster:
    """Who is idle, given back, leased, and worked on. A member is exactly one of these."""

    def __init__(self) -> None:
        self._idle: dict[State, list[Idle]] = {}
        self._members: dict[str, Member] = {}
        """Those that are idle or were given back: what plans can speak of."""
        self._returned: dict[str, Returned] = {}
        self._leased: dict[str, Member] = {}
        self._works: dict[int, Work] = {}
        self._numbers = itertools.count(1)
        self._idle_s: defaultdict[str, float] = defaultdict(float)

    @property
    def idle(self) -> Mapping[State, Sequence[Idle]]:
        """By state, the one that has waited longest first."""
        return self._idle

    @property
    def all_idle(self) -> Iterator[Idle]:
        """The same, one after the other."""
        return itertools.chain.from_iterable(self._idle.values())

    @property
    def returned(self) -> tuple[Returned, ...]:
        """Those that were given back, and that nothing was done about yet."""
        return tuple(self._returned.values())

    @property
    def works(self) -> tuple[Work, ...]:
        """What is under way."""
        return tuple(self._works.values())

    @property
    def leased(self) -> int:
        """How many are."""
        return len(self._leased)

    @property
    def leased_size(self) -> Size:
        """What they take together."""
        return sum((each.size for each in self._leased.values()), NO_SIZE)

    @property
    def count(self) -> int:
        """All of them, with those that are being made and ended."""
        return len(self._members) + len(self._leased) + len(self._works)

    @property
    def busy(self) -> int:
        """Works under way, without destructions: what `Limits.at_once` bounds."""
        return sum(each.kind is not Kind.DESTROY for each in self._works.values())

    def names(self) -> tuple[str, ...]:
        """Those that are idle or were given back."""
        return tuple(self._members)

    def member(self, sandbox: str) -> Member:
        """One of these."""
        return self._members[sandbox]

    def waits(self, member: Member, now_s: float, clock: float) -> None:
        """It is idle from now on; `clock` is that of eviction."""
        self._members[member.id] = member
        idle = Idle(member.id, member.state, member.made_in, now_s, member.size, clock)
        self._idle.setdefault(member.state, []).append(idle)

    def came_back(self, member: Member) -> None:
        """Its lease has ended; it is to be reset or destroyed."""
        del self._leased[member.id]
        self._members[member.id] = member
        self._returned[member.id] = Returned(member.id, member.made_in, member.size)

    def goes(self, member: Member) -> None:
        """It is leased from now on."""
        self._leased[member.id] = member

    def take(self, sandbox: str, now_s: float) -> Member:
        """Out of the idle and the returned ones, for whoever does something to it."""
        member = self._members.pop(sandbox)
        if self._returned.pop(sandbox, None) is None:
            idle = self._idle[member.state]
            place = next(place for place, each in enumerate(idle) if each.sandbox == sandbox)
            self._idle_s[member.wanted.ladder.name_of(member.state)] += now_s - idle.pop(place).since_s
            if not idle:
                del self._idle[member.state]
        return member

    def begin(self, kind: Kind, state: State, now_s: float, size: Size = NO_SIZE) -> int:
        """Something is under way; the number that `end` wants."""
        number = next(self._numbers)
        self._works[number] = Work(kind, state, now_s, size)
        return number

    def end(self, number: int) -> None:
        """It is over."""
        del self._works[number]

    def idle_s(self, now_s: float) -> dict[str, float]:
        """For how long sandboxes have waited, all together, by rung: what a pool wastes."""
        totals = dict(self._idle_s)
        for each in self.all_idle:
            name = self._members[each.sandbox].wanted.ladder.name_of(each.state)
            totals[name] = totals.get(name, 0.0) + now_s - each.since_s
        return totals
