"""One pool under a simulated clock: the real planner and the real router, over sandboxes that are only counted.

It does what `pool.Pool` does, at the same moments: a request is routed when it comes, is served at once if just what it
wants is idle, and waits otherwise; a plan is made whenever something has happened, though no two closer together than
`plan_every_s`, and every `tick_s` when nothing has; whatever is ordered holds its place until it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import chain
from random import Random
from typing import Final

from dutyfree.pool.commands import Command, Create, Demote, Destroy, Promote, Reset
from dutyfree.pool.demand import Announcement, Demand
from dutyfree.pool.planner import plan, plan_cold
from dutyfree.pool.routing import Policy, Route, route
from dutyfree.pool.size import Size
from dutyfree.pool.state import Ladder, State
from dutyfree.pool.view import Idle, Kind, Returned, View
from dutyfree.simulate.outcome import HIT
from dutyfree.simulate.setting import Member, Request, Setting
from dutyfree.simulate.works import Works

MAX_TRIES: Final = 3
"""Works that fail before a request is told so; as in a real pool."""


class Node:
    """A pool, and its sandboxes."""

    def __init__(self, index: int, setting: Setting, numbers: Random) -> None:
        self._setting = setting
        self._clock = setting.clock
        self._tally = setting.tally
        self._numbers = numbers
        self._demand = Demand()
        self._known: dict[State, Ladder] = {}
        self._waiting: dict[State, deque[Request]] = {}
        self._idle: dict[State, list[Idle]] = {}
        self._members: dict[str, Member] = {}
        """Those that are idle or were given back: what plans can speak of."""
        self._returned: dict[str, Returned] = {}
        self._works = Works(setting, numbers, f"{index}/", self._ready, self._failed, self._wake)
        self._leased = 0
        self._eviction_clock = 0.0
        self._planned_s = float("-inf")
        self._will_plan = False
        self._ticks = 0
        """The last chain of ticks that was begun; those before it are void."""
        self._due_s = float("-inf")
        """The last announced moment."""

    @property
    def sandboxes(self) -> int:
        """All of them, with those that are being made and ended."""
        return len(self._members) + self._leased + len(self._works)

    # What is asked of it.

    def announce(self, announcements: Iterable[Announcement]) -> None:
        """Somebody will want these."""
        announced = tuple(announcements)
        for each in announced:
            self._known[each.state] = self._setting.leading_to[each.state]
        self._demand.announce(announced, self._clock.now_s)
        self._due_s = max(self._due_s, *(each.at_s for each in announced))
        self._begin_ticks()
        self._wake()

    def acquire(self, request: Request) -> None:
        """A trajectory begins: it gets a sandbox, does what it does, and gives it back."""
        top, now_s = request.ladder.top, self._clock.now_s
        self._known[top] = request.ladder
        self._demand.arrived(top, now_s)
        found = self._route(request.ladder)
        request.rung = found.rung
        if found.sandbox is not None and not found.missing:
            request.rung = HIT
            self._give(request, self._take(found.sandbox), queue_s=0.0)
        else:
            request.waits = True
            self._waiting.setdefault(top, deque()).append(request)
            self._begin_routed(request.ladder, found)
            if (timeout_s := self._setting.pool.acquire_timeout_s) is not None:
                self._clock.after(timeout_s, self._expire, request)
        self._wake()

    def close(self) -> None:
        """The simulation is over: what still waits for somebody has waited until now."""
        for name in tuple(self._members):
            self._take(name)

    # The life of a request.

    def _begin_routed(self, ladder: Ladder, found: Route) -> None:
        """Do at once what the router says, if there is room; otherwise the planner sees that somebody waits."""
        limits = self._setting.pool.limits
        if self._turns()[0] != ladder.top:
            return  # it is somebody else's turn
        if self._works.busy >= limits.at_once or self._works.paused(ladder.top):
            return
        if found.evict is not None:
            self._carry_out(Destroy(found.evict, "evicted"))
        elif found.sandbox is not None:
            self._carry_out(Promote(found.sandbox, ladder.top))
        elif self.sandboxes < limits.sandboxes and limits.memory_bytes is None and limits.disk_bytes is None:
            self._carry_out(Create(ladder.top))

    def _route(self, ladder: Ladder) -> Route:
        setting = self._setting
        return route(ladder, self._idle, setting.costs, setting.pool.abilities, setting.policy)

    def _give(self, request: Request, member: Member, queue_s: float) -> None:
        numbers, latencies, rollout, tally = self._numbers, self._setting.latencies, request.rollout, self._tally
        self._leased += 1
        self._count()
        give_s = latencies.give.draw(numbers)
        readiness_s = self._clock.now_s + give_s - request.asked_s
        hold_s = rollout.think_s + rollout.action_s / self._works.processor.speed
        cause = None
        if latencies.failures.lease and numbers.random() < latencies.failures.lease:
            cause, hold_s = "lease", hold_s * numbers.random()
        tally.readiness_s.append(readiness_s)
        tally.queue_s.append(queue_s)
        tally.hits[request.rung] += 1
        tally.leased_s += hold_s
        tally.trajectories_s += readiness_s + hold_s
        self._works.processor.beside(rollout.computing)
        self._clock.after(give_s + hold_s, self._release, request, member, cause)

    def _release(self, request: Request, member: Member, cause: str | None) -> None:
        self._works.processor.beside(-request.rollout.computing)
        self._leased -= 1
        if cause is None:
            self._members[member.id] = member
            self._returned[member.id] = Returned(member.id, member.made_in, self._setting.latencies.size)
        else:
            self._works.destroy(member)
        self._wake()
        self._setting.ended(request, cause)

    def _expire(self, request: Request) -> None:
        if request.waits:
            self._refuse(request, "capacity")

    def _refuse(self, request: Request, cause: str) -> None:
        request.waits = False
        top = request.ladder.top
        self._waiting[top].remove(request)
        if not self._waiting[top]:
            del self._waiting[top]
        self._tally.trajectories_s += self._clock.now_s - request.asked_s
        self._setting.ended(request, cause)

    # Sandboxes.

    def _ready(self, member: Member) -> None:
        """A sandbox is nobody's: it goes to whoever waits for it, or waits itself."""
        waiting = self._waiting.get(member.state)
        if waiting:
            request = waiting.popleft()
            if not waiting:
                del self._waiting[member.state]
            request.waits = False
            self._give(request, member, queue_s=max(0.0, member.begun_s - request.asked_s))
            return
        self._members[member.id] = member
        size, now_s = self._setting.latencies.size, self._clock.now_s
        idle = Idle(member.id, member.state, member.made_in, now_s, size, self._eviction_clock)
        self._idle.setdefault(member.state, []).append(idle)

    def _failed(self, kind: Kind, member: Member) -> None:
        """What was to become a sandbox did not: after some tries, who has waited for it longest is told so."""
        self._tally.lost[kind] += 1
        waiting = self._waiting.get(member.ladder.top)
        if waiting and kind not in (Kind.RESET, Kind.DESTROY):
            waiting[0].failures += 1
            if waiting[0].failures >= MAX_TRIES:
                self._refuse(waiting[0], str(kind))

    def _serve(self) -> None:
        """Give idle sandboxes to those who wait for just them: a policy may have passed them over."""
        for state in self._turns():
            while state in self._waiting and (there := self._idle.get(state)):
                self._ready(self._take(there[0].sandbox))

    def _turns(self) -> list[State]:
        """What is waited for, first what the one wants who has waited longest."""
        return sorted(self._waiting, key=lambda state: self._waiting[state][0].asked_s)

    def _take(self, sandbox: str) -> Member:
        """Out of the idle and the returned ones, for whoever does something to it."""
        member = self._members.pop(sandbox)
        if self._returned.pop(sandbox, None) is None:
            idle = self._idle[member.state]
            place = next(place for place, each in enumerate(idle) if each.sandbox == sandbox)
            self._tally.idle_s += self._clock.now_s - idle.pop(place).since_s
            if not idle:
                del self._idle[member.state]
        return member

    # Plans.

    def _wake(self) -> None:
        if not self._will_plan:
            self._will_plan = True
            wait_s = self._planned_s + self._setting.pool.plan_every_s - self._clock.now_s
            self._clock.after(max(0.0, wait_s), self._plan)

    def _begin_ticks(self) -> None:
        self._ticks += 1
        self._clock.after(self._pause_s(), self._tick, self._ticks)

    def _tick(self, chain: int) -> None:
        if chain != self._ticks:
            return
        pause_s = self._pause_s()
        left_s = self._planned_s + pause_s - self._clock.now_s
        if left_s <= 0:
            left_s = pause_s
            if not self._will_plan:
                self._plan()
        self._clock.after(left_s, self._tick, chain)

    def _pause_s(self) -> float:
        """Until the next tick: where time is to be saved, a third of what is left until something is due."""
        pool, now_s = self._setting.pool, self._clock.now_s
        if pool.longest_tick_s is None:
            return pool.tick_s
        left_s = (self._due_s - now_s) / 3 if self._due_s > now_s else pool.longest_tick_s
        return max(pool.tick_s, min(left_s, pool.longest_tick_s))

    def _plan(self) -> None:
        self._will_plan = False
        self._planned_s = self._clock.now_s
        self._tally.plans += 1
        self._serve()
        view = self._view()
        commands = plan_cold(view) if self._setting.policy is Policy.COLD else plan(view)
        for command in commands:
            self._carry_out(command)
        if not self._ticks:
            self._begin_ticks()

    def _view(self) -> View:
        setting = self._setting
        size = setting.latencies.size
        return View(
            now_s=self._clock.now_s,
            limits=setting.pool.limits,
            abilities=setting.pool.abilities,
            costs=setting.costs,
            demand=self._demand,
            ladders=self._known,
            idle=tuple(chain.from_iterable(self._idle.values())),
            returned=tuple(self._returned.values()),
            works=tuple(self._works.under_way),
            leased=self._leased,
            leased_size=Size(self._leased * size.memory_bytes, self._leased * size.disk_bytes),
            waiting={state: len(self._waiting[state]) for state in self._turns() if not self._works.paused(state)},
            clock=self._eviction_clock,
        )

    def _carry_out(self, command: Command) -> None:
        operations, works = self._tally.operations, self._works
        match command:
            case Create(state):
                if not works.paused(state):
                    operations["create"] += 1
                    works.create(self._leading_to(state), state)
            case Promote(sandbox, state):
                operations["promote"] += 1
                works.promote(self._take(sandbox), self._leading_to(state), state)
            case Demote(sandbox):
                operations["demote"] += 1
                works.reset(self._take(sandbox))
            case Reset(sandbox):
                operations["reset"] += 1
                works.reset(self._take(sandbox))
            case Destroy(sandbox, reason, clock):
                operations[reason] += 1
                self._eviction_clock = max(self._eviction_clock, clock)
                works.destroy(self._take(sandbox))
        self._count()

    def _leading_to(self, state: State) -> Ladder:
        return self._known.get(state) or self._setting.leading_to[state]

    def _count(self) -> None:
        if (sandboxes := self.sandboxes) > self._tally.most_sandboxes:
            self._tally.most_sandboxes = sandboxes
        if self._works.busy > self._tally.most_busy:
            self._tally.most_busy = self._works.busy
