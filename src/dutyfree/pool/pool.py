"""The pool of a host: drives the core with asyncio, and gives out leases on real sandboxes.

Everything that changes the core's state happens in one thread, between two awaits. Operations run beside each other;
each one holds its place in the core from the moment it was ordered until it ends, so that no limit is ever exceeded.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from dutyfree.contract import SpanListener
from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest, LeaseLost, SubstrateFailed
from dutyfree.leases.binding import NOTHING, Binding
from dutyfree.leases.table import Lease, LeaseTable, check_request
from dutyfree.model import Capability, Phase
from dutyfree.pool.commands import Abort, CoreCommand, Expire, Give, Refuse, Start
from dutyfree.pool.core import PoolCore
from dutyfree.pool.costs import Costs
from dutyfree.pool.demand import Announcement
from dutyfree.pool.grants import Grant, Grants
from dutyfree.pool.keys import KeyedAcquires
from dutyfree.pool.operations import Operations
from dutyfree.pool.options import PoolOptions
from dutyfree.pool.outcomes import classify
from dutyfree.pool.planner_input import OperationKind
from dutyfree.pool.queue import Request
from dutyfree.pool.routing import COLD_RUNG, Policy
from dutyfree.pool.size import Size
from dutyfree.pool.staging import Stager
from dutyfree.pool.status import PoolStatus, summarise
from dutyfree.pool.wanted import Wanted
from dutyfree.trace import now_ns

_FORKS_RETRY_S: Final = 0.05


class Pool:
    """Gives out leases on sandboxes that `stager` makes, while its `async with` block lasts.

    `on_span` gets every span of every lease. `costs` are those of an earlier run, and are updated. At the end every
    sandbox is destroyed.
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
        self._name = stager.name
        # Without warm sandboxes, a creation belongs to the lease that waits for it, and so do its spans.
        is_cold = options.policy is Policy.COLD
        self._grants = Grants(stager, capabilities, on_span, reports_wait=not is_cold)
        self.costs = costs if costs is not None else Costs()
        self._operations = Operations(stager, self.costs, self._now, self._finished, on_span if is_cold else None)
        core_options = options.for_core(stager.abilities)
        leases = LeaseTable.of_this_machine()
        self.core: PoolCore[Wanted] = PoolCore(core_options, self.costs, leases, self._operations.alive)
        self.on_end: Callable[[Grant], None] | None = None
        """Called with each lease that has ended."""
        self._waiting: dict[Request[Wanted], asyncio.Future[Give[Wanted]]] = {}
        self._active: dict[str, Grant] = {}
        """The grants of all leases, by the id of the lease."""
        self._keys = KeyedAcquires(self._withdraw)
        self._ending: asyncio.Task[DutyfreeError | None] | None = None
        """The destruction that was started last."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop while the pool is open."""
        self._timer: asyncio.TimerHandle | None = None
        self._broken: BaseException | None = None

    async def open(self) -> None:
        """Begin to make plans."""
        self._loop = asyncio.get_running_loop()
        self._schedule()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every lease, request and sandbox. Idempotent; raises SubstrateFailed for a sandbox that does not end."""
        if self._loop is None:
            return
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        for request in tuple(self._waiting):
            self._refuse(request, SubstrateFailed("the pool was closed while this request waited"))
        ends = (self._take_back(grant, "ended with the pool") for grant in tuple(self._active.values()))
        await asyncio.gather(*ends, return_exceptions=True)
        await self._operations.close()

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
        Raises CapacityError (with `retry_after_s`) when too many requests wait or no sandbox was free within
        `timeout_s`; InfraFailed when several sandboxes for it failed; BuildFailed for a stage that fails; as `bind` for
        what cannot be bound.
        """
        ttl_s = self._options.ttl_s if ttl_s is None else ttl_s
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        self._check_open()
        self._grants.check(binding)
        check_request(owner, key, ttl_s)
        if not 0 < timeout_s < math.inf:
            raise InvalidRequest(f"timeout_s is {timeout_s}; it must be positive and finite")
        now_s = self._now()
        request = Request(wanted, owner, ttl_s, key, now_s, now_s + timeout_s)
        if key is None:
            return await self._acquire(request, timeout_s, binding)
        # Pending keys come first: their lease may exist already, but its grant is not complete yet.
        if not self._keys.is_pending((owner, key)) and (lease := self.core.leases.by_key(owner, key)) is not None:
            grant = self._active[lease.id]
            if grant.member.state != request.state:
                raise InvalidRequest(f"key {key!r} stands for a lease on something else")
            return grant
        try:
            return await self._keys.join(
                (owner, key), request.state, timeout_s, lambda: self._acquire(request, timeout_s, binding)
            )
        except TimeoutError:
            raise self._late(request, timeout_s) from None

    async def release(self, grant: Grant) -> None:
        """End the lease. Its sandbox is reset and checked, or destroyed, in the background. Idempotent.

        With the policy `cold` it waits for the destruction, and raises SubstrateFailed if the sandbox does not end.
        """
        if self.core.leases.release(grant.lease.id, grant.lease.token) is None:
            return
        if self._active.get(grant.lease.id) is grant and self._grants.end_at_once(grant):
            del self._active[grant.lease.id]
            ending = self._returned(grant, clean=True)
        else:
            ending = await asyncio.shield(self._operations.spawn(self._take_back(grant)))
        if self._options.policy is Policy.COLD and ending is not None:
            error = await asyncio.shield(ending)
            if error is not None:
                raise error

    async def release_by_id(self, lease_id: str) -> None:
        """As `release`. Does nothing for a lease that has ended; raises LeaseLost for one that was never known."""
        if (grant := self._active.get(lease_id)) is not None:
            await self.release(grant)
        elif not self.core.leases.is_known(lease_id):
            raise LeaseLost(f"there is no lease {lease_id!r}")

    def renew(self, grant: Grant, ttl_s: float | None = None) -> Lease:
        """Let the lease last for `ttl_s` from now. Raises LeaseLost if it has ended."""
        ttl_s = self._options.ttl_s if ttl_s is None else ttl_s
        grant.lease = self.core.leases.renew(grant.lease.id, grant.lease.token, self._now(), ttl_s)
        self._schedule()
        return grant.lease

    def get(self, lease_id: str) -> Grant:
        """The grant of a lease. Raises LeaseLost if the lease has ended or is not known."""
        self._check_open()
        lease = self.core.leases.get(lease_id, self._now())
        grant = self._active.get(lease.id)
        if grant is None or not grant.ready_ns:
            raise LeaseLost(f"lease {lease_id} is not ready yet")
        return grant

    def leases(self) -> tuple[Lease, ...]:
        """All leases, oldest first."""
        return self.core.leases.all()

    def announce(self, announcements: Sequence[tuple[Announcement, Wanted]], withdrawn: Iterable[str] = ()) -> None:
        """Leases are going to be asked for; the same id again replaces what was announced, `withdrawn` ids go."""
        for former in withdrawn:
            self.core.demand.withdraw(former)
        self._obey(self.core.announce(announcements, self._now()))

    def status(self) -> PoolStatus:
        """What there is at this moment, and what has happened since the pool was opened."""
        return summarise(self._name, self.core, self._now())

    # Forks of leased sandboxes.

    async def reserve_forks(self, grant: Grant, count: int) -> None:
        """Count forks against the limit before they are made; idle sandboxes are ended to make room.

        Raises CapacityError if there is no room within the pool's `timeout_s`, or leases alone fill the pool.
        """
        sandbox = grant.member.id
        self._obey(self.core.ask_for_forks(sandbox, count, self._now()))
        try:
            async with asyncio.timeout(self._options.timeout_s):
                while not self.core.take_forks(sandbox, count):
                    grant.fence.check()
                    await asyncio.sleep(_FORKS_RETRY_S)
        except BaseException as error:
            self.core.cancel_forks(sandbox, count)
            if isinstance(error, TimeoutError):
                raise CapacityError(f"no room for {count} forks within {self._options.timeout_s:g} s") from None
            raise

    def forks_ended(self, grant: Grant, count: int) -> None:
        """Forks are gone: their places are free again."""
        self.core.forks_ended(grant.member.id, count)
        self._schedule()

    # The life of a request.

    async def _acquire(self, request: Request[Wanted], timeout_s: float, binding: Binding) -> Grant:
        start_ns = now_ns()
        try:
            async with asyncio.timeout(timeout_s):
                grant = await self._granted(await self._given(request), binding, start_ns)
        except BaseException as error:
            raised = self._late(request, timeout_s) if isinstance(error, TimeoutError) else error
            self.core.metrics.outcomes.count(classify(raised, Phase.QUEUE))
            if raised is not error:
                raise raised from None
            raise
        saved_s = 0.0
        if grant.rung != COLD_RUNG:
            cold_s = self.costs.rebuild_s(request.state, images=self.core.options.abilities.images)
            saved_s = max(0.0, cold_s - grant.readiness_ms / 1000)
        self.core.metrics.acquired(grant.rung, grant.readiness_ms, saved_s)
        return grant

    async def _given(self, request: Request[Wanted]) -> Give[Wanted]:
        """Wait until the core gives the request a sandbox."""
        given: asyncio.Future[Give[Wanted]] = asyncio.get_running_loop().create_future()
        self._waiting[request] = given
        self._obey(self.core.acquire(request, self._now()))
        try:
            return await given
        except BaseException:
            if self._waiting.pop(request, None) is not None:
                self._obey(self.core.cancel(request))
            elif not given.cancelled() and given.exception() is None:
                await asyncio.shield(self._give_back(given.result()))  # it was given at the last moment
            raise

    async def _granted(self, given: Give[Wanted], binding: Binding, start_ns: int) -> Grant:
        try:
            live = self._operations.live[given.member.id]
            grant = self._grants.begin(given.lease, given.member, live, binding, given.request.rung, start_ns)
        except BaseException:
            await asyncio.shield(self._give_back(given))
            raise
        self._active[grant.lease.id] = grant
        try:
            await self._grants.bind(grant, binding)
        except BaseException:
            await asyncio.shield(self._withdraw(grant))
            raise
        return grant

    def _give_back(self, given: Give[Wanted]) -> asyncio.Task[None]:
        """Take back a sandbox that never reached its caller."""

        async def take_back() -> None:
            self.core.leases.withdraw(given.lease.id, given.lease.token)
            self._obey(self.core.returned(given.member.id, self._now()))

        return self._operations.spawn(take_back())

    def _withdraw(self, grant: Grant) -> asyncio.Task[asyncio.Task[DutyfreeError | None] | None]:
        """Take back a grant that never reached its caller; its key may be used again at once."""
        self.core.leases.withdraw(grant.lease.id, grant.lease.token)
        return self._operations.spawn(self._take_back(grant))

    async def _take_back(self, grant: Grant, how: str = "has ended") -> asyncio.Task[DutyfreeError | None] | None:
        """End a grant; returns the destruction of its sandbox if that has begun."""
        if self._active.pop(grant.lease.id, None) is None:
            return None  # another task does it
        return self._returned(grant, clean=await self._grants.end(grant, how))

    def _returned(self, grant: Grant, *, clean: bool) -> asyncio.Task[DutyfreeError | None] | None:
        """Give the sandbox of a grant that has ended back to the core."""
        if self._options.policy is not Policy.COLD:
            self._measure(grant)
        self._ending = None
        self._obey(self.core.returned(grant.member.id, self._now(), clean=clean))
        ending = self._ending
        if self.on_end is not None:
            try:
                self.on_end(grant)
            except Exception as error:  # the listener's failure is not the tenant's
                context = {"message": "a listener of leases failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        return ending

    def _measure(self, grant: Grant) -> None:
        """Measure what the sandbox takes at the end of its lease: later ones are expected to take as much."""
        with suppress(DutyfreeError):
            usage = grant.sandbox.usage()
            if usage is not None:
                self.core.measured(grant.member.id, Size(usage.memory_bytes, usage.disk_bytes))

    def _late(self, request: Request[Wanted], timeout_s: float) -> CapacityError:
        after_s = self.costs.create_s(request.state)
        message = f"no sandbox was ready within {timeout_s:g} s; {len(self.core.queue)} other requests wait"
        hint = "give the pool more sandboxes, or ask for fewer at once"
        return CapacityError(message, hint=hint, retry_after_s=after_s)

    # Driving the core.

    def _schedule(self) -> None:
        """Call `_tick` when the core wants it, instead of when it was to be called before."""
        due_s = self.core.due_s
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return  # it comes early enough, and looks again then
            self._timer.cancel()
            self._timer = None
        if self._loop is not None and self._broken is None and due_s < math.inf:
            self._timer = self._loop.call_at(max(due_s, self._now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            if self.core.due_s <= self._now():
                self._obey(self.core.tick(self._now()))
            else:
                self._schedule()
        except Exception as error:  # without plans, requests would wait for ever
            self._broken = error
            for request in tuple(self._waiting):
                self._refuse(request, SubstrateFailed(f"the pool's planner failed: {error!r}"))
            raise

    def _obey(self, commands: list[CoreCommand[Wanted]]) -> None:
        for command in commands:
            match command:
                case Start(kind=kind):
                    task = self._operations.start(command)
                    self._ending = task if kind is OperationKind.DESTROY else self._ending
                case Abort(number):
                    self._operations.abort(number)
                case Give(request):
                    given = self._waiting.pop(request, None)
                    if given is None or given.done():
                        self._give_back(command)  # its caller was cancelled in this very moment
                    else:
                        given.set_result(command)
                case Refuse(request, error):
                    self._refuse(request, error)
                case Expire(lease):
                    if (grant := self._active.get(lease.id)) is not None:
                        self._operations.spawn(self._take_back(grant, "has expired"))
        self._schedule()

    def _finished(self, start: Start[Wanted], sandbox: str, error: DutyfreeError | None, aborted: bool) -> None:
        if self._loop is None:
            return  # the pool is closing: there is nothing to decide any more
        self._obey(self.core.finished(start.number, self._now(), sandbox=sandbox, error=error, aborted=aborted))

    def _refuse(self, request: Request[Wanted], error: DutyfreeError) -> None:
        self.core.queue.remove(request)
        given = self._waiting.pop(request, None)
        if given is not None and not given.done():
            given.set_exception(error)

    def _check_open(self) -> None:
        if self._loop is None:
            raise InvalidRequest("the pool is not open", hint="use it inside `async with`")
        if self._broken is not None:
            raise SubstrateFailed(f"the pool's planner failed: {self._broken!r}")

    @staticmethod
    def _now() -> float:
        return time.monotonic()
