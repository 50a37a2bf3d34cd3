"""The pool: carries out what the planner and the router decide, and gives out leases.

Everything that changes the roster happens in one thread, between two awaits: what is decided is decided on what there
is. Works (creations, promotions, resets, destructions) run beside each other; each one holds its place from the moment
it was ordered until it ends, so that no limit is ever exceeded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from dutyfree.contract import SpanListener
from dutyfree.errors import CallerError, CapacityError, DutyfreeError, InvalidRequest, SandboxGone, SubstrateFailed
from dutyfree.model import Capability, Phase
from dutyfree.pool.binding import Binding
from dutyfree.pool.commands import Command, Create, Demote, Destroy, Promote, Reset
from dutyfree.pool.costs import Costs
from dutyfree.pool.demand import Announcement, Demand
from dutyfree.pool.keys import KeyedAcquires
from dutyfree.pool.known import Ladders
from dutyfree.pool.ladders import Wanted
from dutyfree.pool.leases import Lease, LeaseTable, check_request
from dutyfree.pool.metrics import HIT, Metrics
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.outcomes import classify
from dutyfree.pool.planner import plan, plan_cold
from dutyfree.pool.roster import Member, Roster
from dutyfree.pool.routing import Policy, Route, route
from dutyfree.pool.staging import Stager
from dutyfree.pool.status import PoolStatus, summarise
from dutyfree.pool.tenancy import Grant, Tenancies
from dutyfree.pool.view import Kind, View
from dutyfree.pool.waiting import Asked, Request, Waiting
from dutyfree.pool.works import Works, ended
from dutyfree.trace import now_ns

TICK_S: Final = 0.25
"""How often a plan is made when nothing happens: sandboxes get old, works get late, leases end."""
PLAN_EVERY_S: Final = 0.005
"""Plans are no closer together than this, however much happens."""
MAX_TRIES: Final = 3
"""Works that fail before a request is told so."""
NOTHING: Final = Binding()


class Pool:
    """Gives out leases on sandboxes that `stager` makes, while its `async with` block lasts.

    `on_span` is told of every span of every lease; `costs` are what was measured before, and go on being measured. At
    the end every sandbox is destroyed.
    """

    def __init__(
        self,
        stager: Stager,
        options: PoolOptions,
        capabilities: frozenset[Capability],
        on_span: SpanListener | None = None,
        costs: Costs | None = None,
    ) -> None:
        self._options = options
        self._tenancies = Tenancies(stager, capabilities, on_span)
        self._policy = Policy(options.policy)
        self._limits = options.limits
        self._abilities = stager.abilities
        self._name = stager.name
        self.costs = costs if costs is not None else Costs()
        self.demand = Demand()
        self.metrics = Metrics()
        self._roster = Roster()
        self._table = LeaseTable()
        self._waiting = Waiting(options.waiting, options.waiting_per_owner, self._table.active)
        self._works = Works(stager, self._roster, self.costs, self, time.monotonic)
        self._ladders = Ladders()
        self._clock = 0.0
        """Of eviction: see `View.clock`."""
        self.on_end: Callable[[Grant], None] | None = None
        """Told of each lease that has ended."""
        self._grants: dict[str, Grant] = {}
        self._keys = KeyedAcquires(self._withdraw)
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._broken: BaseException | None = None

    async def open(self) -> None:
        """Begin to look after sandboxes."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every lease, request and sandbox. Idempotent; raises SubstrateFailed for a sandbox that does not end."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.cancel()
        await asyncio.wait({keeper})
        for request in self._waiting.all():
            self._refuse(request, SubstrateFailed("the pool was closed while this waited"))
        ends = (self._take_back(grant, "ended with the pool") for grant in tuple(self._grants.values()))
        await asyncio.gather(*ends, return_exceptions=True)
        await self._works.close()
        members = [self._roster.take(each, self._now()) for each in self._roster.names()]
        outcomes = await asyncio.gather(*(ended(each) for each in members), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def acquire(
        self,
        wanted: Wanted,
        *,
        owner: str = "",
        key: str | None = None,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
        binding: Binding = NOTHING,
    ) -> Grant:
        """A lease on a sandbox in the wanted state.

        The same `key` of the same owner gives the same lease, also when it is asked for again while it is being made.
        Raises CapacityError (with `retry_after_s`) when too many wait or none came free within `timeout_s`; InfraFailed
        when several sandboxes for it failed; BuildFailed for a stage that does; as `bind` for what cannot be bound.
        """
        ttl_s = self._options.ttl_s if ttl_s is None else ttl_s
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        self._check_open()
        self._tenancies.check(binding)
        check_request(owner, key, ttl_s)
        if not 0 < timeout_s < math.inf:
            raise InvalidRequest(f"timeout_s is {timeout_s}; it must be positive and finite")
        asked = Asked(wanted, owner, key, ttl_s, timeout_s, binding)
        if key is None:
            return await self._acquire(asked)
        # First: what is being made has its lease, and not yet all else.
        if not self._keys.is_pending((owner, key)) and (lease := self._table.by_key(owner, key)) is not None:
            grant = self._grants[lease.id]
            if grant.member.state != wanted.ladder.top:
                raise InvalidRequest(f"key {key!r} stands for a lease on something else")
            return grant
        try:
            return await self._keys.join((owner, key), wanted.ladder.top, timeout_s, lambda: self._acquire(asked))
        except TimeoutError:
            raise self._late(asked) from None

    async def release(self, grant: Grant) -> None:
        """End the lease: its sandbox is reset and checked, or destroyed, in the background. Idempotent."""
        if self._table.release(grant.lease.id, grant.lease.token) is not None:
            await asyncio.shield(self._works.spawn(self._take_back(grant)))

    def renew(self, grant: Grant, ttl_s: float | None = None) -> None:
        """Let the lease last for `ttl_s` from now. Raises LeaseLost if it has ended."""
        ttl_s = self._options.ttl_s if ttl_s is None else ttl_s
        grant.lease = self._table.renew(grant.lease.id, grant.lease.token, self._now(), ttl_s)

    def announce(self, announcements: Sequence[tuple[Announcement, Wanted]]) -> None:
        """Somebody will want this many sandboxes; the same id again replaces what was announced."""
        for _, wanted in announcements:
            self._ladders.add(wanted)
        self.demand.announce([each for each, _ in announcements], self._now())
        self._wake.set()

    def status(self) -> PoolStatus:
        """What there is at this moment, and what has happened since the pool was opened."""
        setting = (self._name, self._policy, self._limits.sandboxes)
        return summarise(setting, self._roster, self.metrics, len(self._waiting), self._now())

    # What works tell.

    def ready(self, member: Member) -> None:
        """A sandbox is nobody's: it goes to whoever waits for it, or waits itself."""
        if not member.sandbox.alive:
            self.metrics.lost += 1
            self._works.destroy(member)
        elif not self._given(member):
            self._roster.waits(member, self._now(), self._clock)

    def _given(self, member: Member) -> bool:
        """Give a sandbox that nobody has to whoever is next of those that wait for it; False if nobody does."""
        request = self._waiting.pop(member.state, self._now())
        if request is not None:
            self._roster.goes(member)
            request.member.set_result(member)
        return request is not None

    def _serve(self, now_s: float) -> None:
        """Give idle sandboxes to those that wait for just them: by whichever way both came about."""
        for state in self._waiting.counts():
            while there := self._roster.idle.get(state):
                idle = there[0].sandbox
                member = self._roster.take(idle, now_s)
                if not self._given(member):
                    self._roster.waits(member, now_s, self._clock)
                    break

    def failed(self, kind: Kind, wanted: Wanted, error: DutyfreeError) -> None:
        """What was to become a sandbox did not: after some tries, the oldest request that waits for it is told why."""
        self.metrics.failed(kind, error)
        state = wanted.ladder.top
        if kind in (Kind.RESET, Kind.DESTROY):
            return  # another will be made: nobody's fault who waits
        # Its own fault fails it for everyone who wants it; a sandbox that died while it was made, for nobody else.
        if isinstance(error, CallerError) and not isinstance(error, SandboxGone):
            for request in self._waiting.all(state):
                self._refuse(request, error)
        elif (oldest := self._waiting.first(state)) is not None:
            oldest.failures += 1
            if oldest.failures >= MAX_TRIES:
                self._refuse(oldest, error)

    def ended(self) -> None:
        """A place is free."""
        self._wake.set()

    # The life of a request.

    async def _acquire(self, asked: Asked) -> Grant:
        wanted, start_ns, now_s = asked.wanted, now_ns(), self._now()
        self._ladders.add(wanted)
        self.demand.arrived(wanted.ladder.top, now_s)
        found = self._route(wanted)
        try:
            async with asyncio.timeout(asked.timeout_s):
                if found.sandbox is not None and not found.missing:
                    member = self._roster.take(found.sandbox, now_s)
                    self._roster.goes(member)
                else:
                    member = await self._wait(Request(asked, now_s), found)
                self._wake.set()
                grant = await self._granted(member, asked, found, start_ns)
        except BaseException as error:
            told = self._late(asked) if isinstance(error, TimeoutError) else error
            self.metrics.outcomes.count(classify(told, Phase.QUEUE))
            if told is not error:
                raise told from None
            raise
        self.metrics.acquired(grant, wanted, self.costs, images=self._abilities.images)
        return grant

    def _late(self, asked: Asked) -> CapacityError:
        after_s = self.costs.create_s(asked.wanted.ladder.top)
        message = f"no sandbox was ready within {asked.timeout_s:g} s; {len(self._waiting)} others wait"
        hint = "give the pool more sandboxes, or ask for fewer at once"
        return CapacityError(message, hint=hint, retry_after_s=after_s)

    def _route(self, wanted: Wanted) -> Route:
        """Where to get a sandbox from; dead ones that are met are dropped."""
        while True:
            found = route(wanted.ladder, self._roster.idle, self.costs, self._abilities, self._policy)
            if found.sandbox is None or self._roster.member(found.sandbox).sandbox.alive:
                return found
            self._drop(found.sandbox)

    async def _wait(self, request: Request, found: Route) -> Member:
        self._waiting.push(request)
        self._begin(request.asked.wanted, found)
        try:
            return await request.member
        except BaseException:
            self._waiting.remove(request)
            if request.member.done() and not request.member.cancelled() and not request.member.exception():
                self._roster.came_back(request.member.result())  # it came at the last moment
                self._wake.set()
            raise

    def _begin(self, wanted: Wanted, found: Route) -> None:
        """Do at once what the router says, if there is room; otherwise the planner will see that somebody waits."""
        limits = self._limits
        self._wake.set()
        if self._waiting.next_state() != wanted.ladder.top:
            return  # it is somebody else's turn
        if self._roster.busy >= limits.at_once or self._works.paused(wanted.ladder.top):
            return
        if found.evict is not None:
            self._carry_out(Destroy(found.evict, "evicted"))
        elif found.sandbox is not None:
            self._carry_out(Promote(found.sandbox, wanted.ladder.top))
        elif self._roster.count < limits.sandboxes:
            self._carry_out(Create(wanted.ladder.top))

    async def _granted(self, member: Member, asked: Asked, found: Route, start_ns: int) -> Grant:
        lease: Lease | None = None
        try:
            lease = self._table.grant(member.id, asked.owner, self._now(), asked.ttl_s, asked.key)
            rung = HIT if found.sandbox is not None and not found.missing else found.rung
            grant = self._grants[lease.id] = self._tenancies.begin(lease, member, asked.binding, rung, start_ns)
        except BaseException:
            if lease is not None:
                self._table.withdraw(lease.id, lease.token)
            self._roster.came_back(member)
            raise
        try:
            await self._tenancies.bind(grant, asked.binding)
        except BaseException:
            await asyncio.shield(self._withdraw(grant))
            raise
        return grant

    def _withdraw(self, grant: Grant) -> asyncio.Task[None]:
        """Take back what its owner never got; the key may be tried again at once."""
        self._table.withdraw(grant.lease.id, grant.lease.token)
        return self._works.spawn(self._take_back(grant))

    async def _take_back(self, grant: Grant, how: str = "has ended") -> None:
        if self._grants.pop(grant.lease.id, None) is None:
            return  # somebody else does
        member = grant.member
        drained = await self._tenancies.end(grant, how)
        self._roster.came_back(member)
        if not drained or not member.sandbox.alive:
            self.metrics.lost += not member.sandbox.alive
            self._works.destroy(self._roster.take(member.id, self._now()))
        self._wake.set()
        if self.on_end is not None:
            try:
                self.on_end(grant)
            except Exception as error:  # a listener's fault is not the tenant's
                told = {"message": "a listener of leases failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    def _refuse(self, request: Request, error: DutyfreeError) -> None:
        self._waiting.remove(request)
        if not request.member.done():
            request.member.set_exception(error)

    # Plans.

    async def _keep(self) -> None:
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._wake.wait()
                self._wake.clear()
                self._look_after()
                await asyncio.sleep(PLAN_EVERY_S)
        except Exception as error:  # a pool without a planner would let everybody wait for ever
            self._broken = error
            for request in self._waiting.all():
                self._refuse(request, SubstrateFailed(f"the pool's planner failed: {error!r}"))
            raise

    def _look_after(self) -> None:
        now_s = self._now()
        for lease in self._table.expired(now_s):
            grant = self._grants.get(lease.id)
            if grant is not None:
                self.metrics.expired += 1
                self._works.spawn(self._take_back(grant, "has expired"))
        for idle in [each for each in self._roster.all_idle if not self._roster.member(each.sandbox).sandbox.alive]:
            self._drop(idle.sandbox)
        self._serve(now_s)
        for command in self._commands(now_s):
            self._carry_out(command)

    def _commands(self, now_s: float) -> tuple[Command, ...]:
        view = View(
            now_s,
            self._limits,
            self._abilities,
            self.costs,
            self.demand,
            self._ladders.by_top(),
            tuple(self._roster.all_idle),
            self._roster.returned,
            self._roster.works,
            self._roster.leased,
            self._roster.leased_size,
            {state: count for state, count in self._waiting.counts().items() if not self._works.paused(state)},
            self._clock,
        )
        return plan_cold(view) if self._policy is Policy.COLD else plan(view)

    def _carry_out(self, command: Command) -> None:
        now_s = self._now()
        match command:
            case Create(state):
                if not self._works.paused(state) and (wanted := self._ladders.leading_to(state)) is not None:
                    self._works.create(wanted, state)
            case Promote(sandbox, state):
                if (wanted := self._ladders.leading_to(state)) is not None:
                    self._works.promote(self._roster.take(sandbox, now_s), wanted, state)
            case Demote(sandbox) | Reset(sandbox):
                self._works.reset(self._roster.take(sandbox, now_s))
            case Destroy(sandbox, reason):
                self.metrics.destroyed[reason] += 1
                self._clock = max(self._clock, command.clock)
                self._works.destroy(self._roster.take(sandbox, now_s))

    def _drop(self, sandbox: str) -> None:
        """An idle sandbox has died."""
        self.metrics.lost += 1
        self._works.destroy(self._roster.take(sandbox, self._now()))

    def _check_open(self) -> None:
        if self._keeper is None:
            raise InvalidRequest("the pool is not open", hint="use it inside `async with`")
        if self._broken is not None:
            raise SubstrateFailed(f"the pool's planner failed: {self._broken!r}")

    @staticmethod
    def _now() -> float:
        return time.monotonic()
