"""The pool's decisions as a state machine without I/O: events and the time go in, commands come out.

`pool.Pool` drives the core with asyncio and real sandboxes, `simulate.node.Node` with virtual time and random
latencies, tests with scripted completions. All of them run the same decisions, so a simulation shows what a real pool
would do.

The driver calls one method for each event, with the time, and carries out the returned commands in their order. Between
events it calls `tick` at `due_s`. It reports every operation that it has started to `finished`, exactly once; a failed
one after it has removed what the operation left. The core itself calls the driver only to ask whether a sandbox is
`alive`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from dutyfree.errors import CallerError, CapacityError, DutyfreeError, SandboxGone
from dutyfree.leases.table import LeaseTable
from dutyfree.pool.commands import (
    Abort,
    CoreCommand,
    Create,
    Demote,
    Destroy,
    Expire,
    Give,
    PlannerCommand,
    Promote,
    Refuse,
    Reset,
    Start,
)
from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.demand import Announcement, Demand
from dutyfree.pool.forks import Forks
from dutyfree.pool.goal import Goal
from dutyfree.pool.members import Member, Members
from dutyfree.pool.metrics import HIT, Metrics
from dutyfree.pool.planner import plan_cold, plan_until, unready
from dutyfree.pool.planner_input import Abilities, Limits, Operation, OperationKind, PlannerInput
from dutyfree.pool.queue import Request, RequestQueue
from dutyfree.pool.routing import Policy, Route, route
from dutyfree.pool.size import Size
from dutyfree.pool.state import Ladder, State
from dutyfree.values import dataclass

G = TypeVar("G", bound=Goal)

MAX_LADDERS: Final = 32_768
"""The most goals that the core keeps: more than the most announcements, so that every announced goal is known."""
MAX_TRIES: Final = 3
"""A request is refused after this many failed operations for it."""
STUCK_AFTER_P95: Final = 20
"""A creation is stuck once it takes this many times the p95 of earlier creations, and at least `STUCK_AFTER_S`."""
STUCK_AFTER_S: Final = 30.0
_KNOWN_CREATIONS: Final = 10
"""Creations of a state that must have been measured before one of them can count as stuck."""
_FIRST_PAUSE_S: Final = 0.1
"""The pause after the first failed creation in a state; each further failure doubles it."""
_LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """The settings of a core."""

    limits: Limits
    abilities: Abilities
    policy: Policy = Policy.LOCALITY
    queue: int = 4096
    """The most requests that may wait."""
    queue_per_owner: int | None = None
    plan_every_s: float = 0.005
    """The shortest time between two plans. It bounds the CPU time for plans when many events come at once."""
    tick_s: float = 0.25
    """The time between two plans without events. Sandboxes age, operations get late and leases expire meanwhile."""
    longest_tick_s: float | None = None
    """For simulations, to save time: the longest time between two plans while no announced time is near."""


class PoolCore(Generic[G]):
    """Makes the decisions of one pool. Not thread-safe; time never runs backwards.

    `alive` says whether an idle or returned sandbox still lives. Without it, the core assumes that all do.
    """

    def __init__(
        self,
        options: CoreOptions,
        costs: Costs,
        leases: LeaseTable | None = None,
        alive: Callable[[str], bool] | None = None,
    ) -> None:
        self.options = options
        self.costs = costs
        self.demand = Demand()
        self.metrics = Metrics()
        self.members: Members[G] = Members()
        self._forks = Forks(options.limits, self.members)
        self.leases = leases if leases is not None else LeaseTable()
        self.queue: RequestQueue[G] = RequestQueue(options.queue, options.queue_per_owner, self.leases.active)
        self._alive = alive
        self._goals: OrderedDict[State, G] = OrderedDict()
        """Requested and announced goals by their wanted state, the least recently used first."""
        self._ladders: dict[State, Ladder] = {}
        """The ladders of `_goals`, for the planner."""
        self._pauses: dict[State, tuple[float, float]] = {}
        """For each state whose last creation failed: the end of the pause before the next creation, and its length."""
        self._errors: OrderedDict[State, DutyfreeError] = OrderedDict()
        """The last error of each state whose last creation or promotion failed."""
        self._pauses_end_s = math.inf
        """When the first of the pauses ends that the last plan has seen."""
        self._announced_s = math.inf
        """When a plan must begin sandboxes that were announced."""
        self._made_for: dict[int, Request[G]] = {}
        """In a cold pool: the request that began each creation, and that gets its sandbox if it still waits."""
        self._eviction_clock = 0.0
        self._planned_s = -math.inf
        """When the last plan was made."""
        self._changed = False
        """Whether an event has come since the last plan."""
        self._commands: list[CoreCommand[G]] = []

    @property
    def due_s(self) -> float:
        """When the driver should call `tick` next, unless an event comes first; infinite if it need not."""
        if self.options.policy is Policy.COLD and len(self.queue) <= self.members.busy and not self.members.has_free:
            # A cold pool needs a plan only if a request has no creation, or a sandbox has no request.
            expiry_s = self.leases.next_expiry_s
            return math.inf if expiry_s is None else expiry_s
        if self._changed:
            return self._planned_s + self.options.plan_every_s
        tick_s = self.options.longest_tick_s or self.options.tick_s
        return min(self._planned_s + tick_s, self._pauses_end_s, self._announced_s)

    # Events: requests and leases.

    def acquire(self, request: Request[G], now_s: float) -> list[CoreCommand[G]]:
        """A caller requests a sandbox. The core grants or refuses the request now or later, unless it is cancelled."""
        self._remember(request.goal)
        if self.options.policy is not Policy.COLD:
            self.demand.arrived(request.state, now_s)
        found = self._route(request.goal, now_s)
        request.rung = found.rung
        if found.sandbox is not None and not found.missing:
            request.rung = HIT
            self._grant(request, self.members.take(found.sandbox, now_s), now_s)
            return self._done()
        try:
            displaced = self.queue.push(request)
        except CapacityError as error:
            self._commands.append(Refuse(request, error))
            return self._done()
        if displaced is not None:
            self._commands.append(Refuse(*displaced))
        self._begin_chosen(request, found, now_s)
        return self._done()

    def cancel(self, request: Request[G]) -> list[CoreCommand[G]]:
        """The caller does not wait any more. Does nothing for a request that was granted or refused.

        A cold pool could not use the sandbox of this request for another one later. So it also aborts a creation that
        no request waits for.
        """
        if self.queue.remove(request) and self.options.policy is Policy.COLD:
            creations = self.members.creations(request.state)
            if len(creations) > len(self.queue.all(request.state)):
                self._commands.append(Abort(creations[-1]))
        return self._done()

    def returned(self, sandbox: str, now_s: float, *, clean: bool = True) -> list[CoreCommand[G]]:
        """A lease has ended, its tenant is locked out and its forks are gone: the sandbox can be used again.

        `clean` is False if a call of the tenant may still reach the sandbox. The core then destroys it.
        """
        member = self.members.leased_member(sandbox)
        self.members.put_returned(member)
        self._forks.cancel_all(sandbox)  # a call that did not end in time may still claim places
        alive = self._lives(sandbox)
        self.metrics.lost += not alive
        if not clean or not alive:
            self._destroy(sandbox, "lost", now_s)
        elif self.options.policy is Policy.COLD:
            self._destroy(sandbox, "unusable", now_s)
        return self._done()

    def measured(self, sandbox: str, size: Size) -> None:
        """A leased sandbox was measured. Sandboxes in its state are expected to have this size from now on."""
        member = self.members.leased_member(sandbox)
        self.costs.observe_size(member.state, size)
        self.members.resize(member, self._size(member.state))

    def announce(self, announcements: Sequence[tuple[Announcement, G]], now_s: float) -> list[CoreCommand[G]]:
        """A caller announces requests. An announcement with a known id replaces the earlier one."""
        for _, goal in announcements:
            self._remember(goal)
        self.demand.announce([each for each, _ in announcements], now_s)
        return self._done()

    def unready(self, now_s: float) -> Mapping[str, int]:
        """The announced sandboxes that fit into the pool and are not ready yet, by the group of their announcement.

        A cold pool keeps no sandboxes, so none of them fits.
        """
        return {} if self.options.policy is Policy.COLD else unready(self._planner_input(now_s))

    def last_error(self, state: State) -> DutyfreeError | None:
        """Why the last creation or promotion in a state failed; None if it did not."""
        return self._errors.get(state)

    # Events: forks of leased sandboxes, which count against the limits.

    def ask_for_forks(self, sandbox: str, count: int, now_s: float) -> list[CoreCommand[G]]:
        """A tenant wants to fork its sandbox: claim places, and destroy idle sandboxes to make room.

        The driver then calls `take_forks` until it returns True, or `cancel_forks`. Raises CapacityError at once if
        leases alone fill the pool: no room would become free while the tenant waits.
        """
        self._forks.claim(sandbox, count)
        self._make_room(now_s)
        return self._done()

    def take_forks(self, sandbox: str, count: int) -> bool:
        """Take the claimed places, if they are free. Returns whether they were; False once the lease has ended."""
        taken = self._forks.take(sandbox, count)
        self._changed = self._changed or taken
        return taken

    def cancel_forks(self, sandbox: str, count: int) -> None:
        """Give up places that were claimed and not taken."""
        self._forks.cancel(sandbox, count)
        self._changed = True

    def forks_ended(self, sandbox: str, count: int) -> None:
        """Forks of a leased sandbox are gone. Does nothing once the lease has ended."""
        if self._forks.ended(sandbox, count):
            self._changed = True

    # Events: operations and time.

    def finished(
        self, number: int, now_s: float, *, sandbox: str = "", error: DutyfreeError | None = None, aborted: bool = False
    ) -> list[CoreCommand[G]]:
        """An operation has ended. `sandbox` is the id of the sandbox that a creation made; `error` says why it failed.

        If the operation failed or was `aborted`, the driver has already destroyed its sandbox.
        """
        running = self.members.end(number)
        operation, member = running.operation, running.member
        made_for = self._made_for.pop(number, None)
        if aborted:
            return self._done()
        if error is not None:
            if operation.kind is OperationKind.CREATE:
                self._pause(operation.state, now_s)
            if operation.kind in (OperationKind.CREATE, OperationKind.PROMOTE):
                self._errors[operation.state] = error
                if len(self._errors) > MAX_LADDERS:
                    self._errors.popitem(last=False)
            self._failed(operation.kind, running.goal, error)
        elif operation.kind is OperationKind.CREATE:
            self._pauses.pop(operation.state, None)
            self._errors.pop(operation.state, None)
            made_in = running.goal.made_in(operation.state)
            size = self._size(operation.state)
            made = Member(sandbox, running.goal, operation.state, made_in, size, begun_s=operation.since_s)
            self._ready(made, now_s, made_for)
        elif member is not None and operation.kind is not OperationKind.DESTROY:
            member.state = operation.state
            self._errors.pop(operation.state, None)
            self._ready(member, now_s)
        return self._done()

    def tick(self, now_s: float) -> list[CoreCommand[G]]:
        """Time has passed: expire leases, remove dead sandboxes, serve requests, and make a plan."""
        for lease in self.leases.expired(now_s):
            self.metrics.expired += 1
            self._commands.append(Expire(lease))
        if self._alive is not None:
            for idle in [each for each in self.members.all_idle if not self._alive(each.sandbox)]:
                self._drop(idle.sandbox, now_s)
        self._serve(now_s)
        self._make_room(now_s)
        self._planned_s = now_s
        self._pauses_end_s = min((end_s for end_s, _ in self._pauses.values() if end_s > now_s), default=math.inf)
        self._changed = False
        planner_input = self._planner_input(now_s)
        if self.options.policy is Policy.COLD:
            commands = plan_cold(planner_input)
        else:
            commands, self._announced_s = plan_until(planner_input)
        for command in commands:
            self._obey(command, now_s)
        return self._done(changed=False)

    # Serving requests.

    def _route(self, goal: G, now_s: float) -> Route:
        """Choose a sandbox for a request. Dead sandboxes that the router chooses are removed."""
        while True:
            options = self.options
            found = route(goal.ladder, self.members.idle, self.costs, options.abilities, options.policy)
            if found.sandbox is None or self._lives(found.sandbox):
                return found
            self._drop(found.sandbox, now_s)

    def _begin_chosen(self, request: Request[G], found: Route, now_s: float) -> None:
        """Begin the chosen operation at once, if there is room: that saves the wait for the next plan.

        Otherwise the next plan serves the request, which is in the queue by now.
        """
        top = request.state
        if self._is_scarce and self.queue.next_state() != top:
            return  # another request is served first: this one must not take its room
        if self.members.busy >= self.options.limits.at_once or self._paused(top, now_s):
            return
        if found.evict is not None:
            self._obey(Destroy(found.evict, "evicted"), now_s)
        elif found.sandbox is not None:
            self._obey(Promote(found.sandbox, top), now_s)
        elif self._has_room(self._size(top)):
            number = self._start(OperationKind.CREATE, request.goal, top, None, now_s)
            if self.options.policy is Policy.COLD:
                self._made_for[number] = request

    @property
    def _is_scarce(self) -> bool:
        """Whether requests compete for room, so that their order matters.

        In a cold pool they do not if every request without a creation can begin one now. A pool that keeps sandboxes
        always has to respect the order, because requests also compete for idle sandboxes.
        """
        if self.options.policy is not Policy.COLD:
            return True
        limits, without_creation = self.options.limits, len(self.queue) - self.members.busy
        return without_creation > min(limits.sandboxes - self.members.count, limits.at_once - self.members.busy)

    def _has_room(self, size: Size) -> bool:
        limits = self.options.limits
        if self.members.count + self._forks.claimed >= limits.sandboxes:
            return False
        if limits.memory_bytes is None and limits.disk_bytes is None:
            return True
        return limits.allow(self.members.total_size + size)

    def _size(self, state: State) -> Size:
        return self.options.limits.clamp(self.costs.size(state))

    def _grant(self, request: Request[G], member: Member[G], now_s: float) -> None:
        self.members.lease(member)
        lease = self.leases.grant(member.id, request.owner, now_s, request.ttl_s, request.key, request.labels)
        self._commands.append(Give(request, lease, member))

    def _ready(self, member: Member[G], now_s: float, made_for: Request[G] | None = None) -> None:
        """Give a ready sandbox to `made_for`, or to the next request for its state; without one, it becomes idle."""
        alive = self._lives(member.id)
        if alive:
            request = made_for if made_for is not None and self.queue.remove(made_for) else None
            request = request or self.queue.pop(member.state, now_s)
            if request is not None:
                self._grant(request, member, now_s)
                return
        self.members.put_idle(member, now_s, self._eviction_clock)
        if not alive:
            self._drop(member.id, now_s)

    def _serve(self, now_s: float) -> None:
        """Give idle sandboxes to requests for exactly their state: the policy may have passed them over before."""
        for state in self.queue.counts():
            while idle := self.members.idle.get(state):
                request = self.queue.pop(state, now_s)
                if request is None:
                    break
                self._grant(request, self.members.take(idle[0].sandbox, now_s), now_s)

    def _failed(self, kind: OperationKind, goal: G, error: DutyfreeError) -> None:
        """An operation for a goal has failed: refuse the requests that cannot succeed, or that failed too often."""
        self.metrics.failed(kind, error)
        state = goal.ladder.top
        if kind in (OperationKind.RESET, OperationKind.DESTROY):
            return  # no request depends on this sandbox: the planner makes another one
        # A caller error, such as a recipe that does not build, fails every request for the state. A sandbox that died,
        # and a failure of the infrastructure, count against one request only: the next operation may succeed.
        if isinstance(error, CallerError) and not isinstance(error, SandboxGone):
            for request in self.queue.all(state):
                self._refuse(request, error)
        elif (oldest := self.queue.first(state)) is not None:
            oldest.failures += 1
            if oldest.failures >= MAX_TRIES:
                self._refuse(oldest, error)

    def _refuse(self, request: Request[G], error: DutyfreeError) -> None:
        self.queue.remove(request)
        self._commands.append(Refuse(request, error))

    # Plans and operations.

    def _planner_input(self, now_s: float) -> PlannerInput:
        return PlannerInput(
            now_s,
            self.options.limits,
            self.options.abilities,
            self.costs,
            self.demand,
            self._ladders,
            tuple(self.members.all_idle),
            self.members.returned,
            self.members.operations,
            self.members.leased + self._forks.claimed,
            self.members.leased_size,
            {state: count for state, count in self.queue.counts().items() if not self._paused(state, now_s)},
            self._eviction_clock,
        )

    def _obey(self, command: PlannerCommand, now_s: float) -> None:
        match command:
            case Create(state):
                if not self._paused(state, now_s) and (goal := self._leading_to(state)) is not None:
                    self._start(OperationKind.CREATE, goal, state, None, now_s)
            case Promote(sandbox, state):
                if (goal := self._leading_to(state)) is not None:
                    member = self.members.take(sandbox, now_s)
                    member.goal = goal
                    self._start(OperationKind.PROMOTE, goal, state, member, now_s)
            case Demote(sandbox) | Reset(sandbox):
                member = self.members.take(sandbox, now_s)
                reason = "demote" if isinstance(command, Demote) else ""
                self._start(OperationKind.RESET, member.goal, member.made_in, member, now_s, reason)
            case Destroy(sandbox, reason):
                self._eviction_clock = max(self._eviction_clock, command.clock)
                self._destroy(sandbox, reason, now_s)

    def _destroy(self, sandbox: str, reason: str, now_s: float) -> None:
        if reason != "lost":
            self.metrics.destroyed[reason] += 1
        member = self.members.take(sandbox, now_s)
        self._start(OperationKind.DESTROY, member.goal, member.state, member, now_s, reason)

    def _drop(self, sandbox: str, now_s: float) -> None:
        """Destroy what is left of an idle sandbox that has died."""
        self.metrics.lost += 1
        self._destroy(sandbox, "lost", now_s)

    def _start(
        self, kind: OperationKind, goal: G, state: State, member: Member[G] | None, now_s: float, reason: str = ""
    ) -> int:
        """Record the operation and command the driver to begin it. It holds its place in the pool from now on.

        Returns the number of the operation.
        """
        size = member.size if member is not None else self._size(state)
        number = self.members.begin(Operation(kind, state, now_s, size), goal, member)
        if member is not None:
            member.begun_s = now_s
        made_in = goal.made_in(state) if member is None else member.made_in
        within_s = self._stuck_after_s(made_in) if kind is OperationKind.CREATE else None
        self._commands.append(Start(number, kind, goal, state, made_in, member, within_s, reason))
        return number

    def _stuck_after_s(self, made_in: State) -> float | None:
        """After which time a creation is stuck. None while the p95 is not reliable: few creations were measured."""
        known = self.costs.measured(Step.create(made_in))
        if known is None or known.count < _KNOWN_CREATIONS:
            return None
        return max(STUCK_AFTER_S, STUCK_AFTER_P95 * known.p95_s)

    def _make_room(self, now_s: float) -> None:
        """Destroy idle and returned sandboxes until the claimed places of forks are free."""
        for sandbox in self._forks.in_the_way():
            self._destroy(sandbox, "evicted", now_s)

    def _lives(self, sandbox: str) -> bool:
        return self._alive is None or self._alive(sandbox)

    def _paused(self, state: State, now_s: float) -> bool:
        """Whether a creation in this state failed so recently that no other may begin now."""
        return bool(self._pauses) and self._pauses.get(state, (0.0, 0.0))[0] > now_s

    def _pause(self, state: State, now_s: float) -> None:
        """Begin a pause, twice as long as the one before. A substrate that is down fails every creation, and trying
        again at once would only load it further."""
        pause_s = min(2 * self._pauses.get(state, (0.0, _FIRST_PAUSE_S / 2))[1], _LONGEST_PAUSE_S)
        self._pauses[state] = (now_s + pause_s, pause_s)

    def _remember(self, goal: G) -> None:
        top = goal.ladder.top
        is_known = self._goals.get(top) is goal
        self._goals[top] = goal
        self._goals.move_to_end(top)
        if is_known:
            return
        self._ladders[top] = goal.ladder
        if len(self._goals) > MAX_LADDERS:
            del self._ladders[self._goals.popitem(last=False)[0]]

    def _leading_to(self, state: State) -> G | None:
        """A known goal whose wanted state is this one or begins with it."""
        found = self._goals.get(state)
        return found or next((each for each in self._goals.values() if state.begins(each.ladder.top)), None)

    def _done(self, *, changed: bool = True) -> list[CoreCommand[G]]:
        """Return the commands of this event. `changed` says whether a plan is needed soon."""
        self._changed = self._changed or changed
        commands, self._commands = self._commands, []
        return commands
