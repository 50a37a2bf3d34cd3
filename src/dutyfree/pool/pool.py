"""The pool of a host: drives the core with asyncio, and gives out leases on real sandboxes.

Everything that changes the core's state happens in one thread, without an await in between, so that the core needs no
lock. Operations run concurrently. Each one holds its place in the core from the command to its end, so that the pool
never exceeds a limit.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from dutyfree.checked import seconds
from dutyfree.contract import SpanListener
from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest, LeaseLost, SubstrateFailed
from dutyfree.leases.binding import NOTHING, Binding
from dutyfree.leases.table import NO_LABELS, Lease, LeaseTable, check_request
from dutyfree.model import Bill, Capability, Phase
from dutyfree.pool.billing import Billing, SpanSink
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
from dutyfree.pool.wanted import Wanted
from dutyfree.trace import now_ns

if TYPE_CHECKING:
    from dutyfree.pool.status import PoolStatus

_FORKS_RETRY_S: Final = 0.05
"""How often `reserve_forks` looks whether the claimed places are free."""


class Pool:
    """Gives out leases on sandboxes that `stager` makes, while its `async with` block lasts.

    `on_span` gets every span of every lease, and of what the pool does in the background. `costs` may come from an
    earlier run; the pool updates them. At the end of the block the pool destroys every sandbox.
    """

    def __init__(
        self,
        stager: Stager,
        options: PoolOptions,
        capabilities: frozenset[Capability],
        on_span: SpanListener | None = None,
        costs: Costs | None = None,
        *,
        measures: bool = True,
    ) -> None:
        """Without `measures`, leases keep no spans and operations no costs: each takes microseconds."""
        self._options = options
        self._name = stager.name
        # Without warm sandboxes, a creation belongs to the lease that waits for it, and so do its spans.
        is_cold = options.policy is Policy.COLD
        self.billing = Billing()
        self._grants = Grants(stager, capabilities, on_span, self.billing, reports_wait=not is_cold, records=measures)
        self.costs = costs if costs is not None else Costs()
        self._operations = Operations(
            stager,
            self.costs,
            self._now,
            self._finished,
            lambda: SpanSink(self.billing, on_span, cold=is_cold),
            self.billing,
            measures=measures,
        )
        core_options = options.for_core(stager.abilities)
        leases = LeaseTable.of_this_machine()
        self.core: PoolCore[Wanted] = PoolCore(core_options, self.costs, leases, self._operations.alive)
        self.on_end: Callable[[Grant], None] | None = None
        """Called with each lease that has ended."""
        self.operation_ended = asyncio.Event()
        """Set whenever an operation ends. A task that waits for it clears it before."""
        self._waiting: dict[Request[Wanted], asyncio.Future[Give[Wanted]]] = {}
        self._active: dict[str, Grant] = {}
        """The grants of all leases, by the id of the lease."""
        self._keys = KeyedAcquires(self._withdraw)
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop while the pool is open."""
        self._timer: asyncio.TimerHandle | None = None
        self._broken: BaseException | None = None

    @property
    def timeout_s(self) -> float:
        """How long a request waits by default."""
        return self._options.timeout_s

    async def open(self) -> None:
        """Begin to plan and to serve requests."""
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
        """End every lease, request and sandbox. Idempotent. Raises SubstrateFailed if a destruction fails."""
        if self._loop is None:
            return
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        for request in tuple(self._waiting):
            self._refuse(request, SubstrateFailed("the pool was closed while this request waited"))
        ends = (self._take_back(grant, "ended with the pool") for grant in tuple(self._active.values()))
        await asyncio.gather(*ends, return_exceptions=True)
        try:
            await self._operations.close()
        finally:
            await self._grants.drained()
            self.billing.end_ns = now_ns()

    async def acquire(
        self,
        wanted: Wanted,
        *,
        owner: str = "",
        key: str | None = None,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
        binding: Binding = NOTHING,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Grant:
        """Lease a sandbox in the wanted state.

        A repeated call with the same owner and `key` gets the same lease, also while the first call still waits. Raises
        CapacityError (with `retry_after_s`) when too many requests wait or no sandbox was free within `timeout_s`;
        InfraFailed when several operations for the request failed; BuildFailed for a stage that fails; and as `bind`
        for a binding that the substrate does not support.
        """
        ttl_s = self._options.ttl_s if ttl_s is None else ttl_s
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        self._check_open()
        self._grants.check(binding)
        check_request(owner, key, ttl_s)
        seconds("timeout_s", timeout_s)
        now_s = self._now()
        request = Request(wanted, owner, ttl_s, key, now_s, now_s + timeout_s, labels=labels)
        if key is None:
            return await self._acquire(request, timeout_s, binding)
        # Pending acquires are checked first: their lease may be in the table already, while the grant is not complete.
        if not self._keys.is_pending((owner, key)) and (lease := self.core.leases.by_key(owner, key)) is not None:
            grant = self._active[lease.id]
            if grant.member.state != request.state:
                raise InvalidRequest(f"key {key!r} belongs to a lease on another image or spec")
            return grant
        try:
            return await self._keys.join(
                (owner, key), request.state, timeout_s, lambda: self._acquire(request, timeout_s, binding)
            )
        except TimeoutError:
            raise self._late(request, timeout_s) from None

    async def release(self, grant: Grant) -> None:
        """End the lease. Its sandbox is reset or destroyed in the background. Idempotent.

        With the policy `cold` it waits for the destruction, and raises SubstrateFailed if that fails.
        """
        if self.core.leases.release(grant.lease.id, grant.lease.token) is None:
            return
        error = None
        if self._active.get(grant.lease.id) is grant and self._grants.end_at_once(grant):
            del self._active[grant.lease.id]
            if (own := self._returned(grant, clean=True)) is not None:
                error = await self._operations.run_here(own)
        else:
            destruction = await asyncio.shield(self._operations.spawn(self._take_back(grant)))
            error = await asyncio.shield(destruction) if destruction is not None else None
        if error is not None:
            raise error

    async def withdraw(self, grant: Grant) -> None:
        """End a lease that its caller will not get; its key may be used again at once."""
        await asyncio.shield(self._withdraw(grant))

    async def release_by_id(self, lease_id: str) -> None:
        """As `release`. Does nothing for a lease that has ended; raises LeaseLost for an unknown one."""
        if (grant := self._active.get(lease_id)) is not None:
            await self.release(grant)
        elif not self.core.leases.is_known(lease_id):
            raise LeaseLost(f"there is no lease {lease_id!r}")

    def renew(self, grant: Grant, ttl_s: float | None = None) -> Lease:
        """Set the expiry of the lease to `ttl_s` from now. Raises LeaseLost if it has ended."""
        ttl_s = self._options.ttl_s if ttl_s is None else ttl_s
        grant.lease = self.core.leases.renew(grant.lease.id, grant.lease.token, self._now(), ttl_s)
        self._schedule()
        return grant.lease

    def set_labels(self, grant: Grant, labels: Mapping[str, str]) -> Lease:
        """Replace the labels of the lease. Raises LeaseLost if it has ended."""
        grant.lease = self.core.leases.set_labels(grant.lease.id, grant.lease.token, self._now(), labels)
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
        """Announce requests, and withdraw earlier announcements by their ids. A known id replaces the earlier one."""
        for former in withdrawn:
            self.core.demand.withdraw(former)
        self._obey(self.core.announce(announcements, self._now()))

    def unready(self) -> Mapping[str, int]:
        """The announced sandboxes that fit into the pool and are not ready yet, by the group of their announcement.

        Raises InvalidRequest if the pool is not open, and SubstrateFailed if its planner has failed.
        """
        self._check_open()
        return self.core.unready(self._now())

    def status(self) -> PoolStatus:
        """The sandboxes and requests at this moment, and the counters since the pool was opened."""
        from dutyfree.pool.status import summarise  # few processes ask

        return summarise(self._name, self.core, self._now())

    def keep_no_spans(self) -> None:
        """Leases from now on keep no spans; the bill needs counters alone."""
        self._grants.records = False

    def bill(self) -> Bill:
        """What the leases and the pool have cost from its opening to its end. May be called in any thread."""
        ready_ns = [grant.ready_ns for grant in tuple(self._active.values())]
        return self.billing.bill(self._name, [each for each in ready_ns if each])

    # Forks of leased sandboxes.

    async def reserve_forks(self, grant: Grant, count: int) -> None:
        """Reserve places for forks before they are made; idle sandboxes are destroyed to make room.

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
        """Free the places of forks that are gone."""
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
            self.billing.failed("acquire", raised)
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
        own = self._obey_but_own(self.core.acquire(request, self._now()), OperationKind.CREATE)
        try:
            if own is not None:
                await self._operations.run_here(own)
            return await given
        except BaseException:
            if self._waiting.pop(request, None) is not None:
                self._obey(self.core.cancel(request))
            elif not given.cancelled() and given.exception() is None:
                # The core gave the sandbox in the same moment in which the caller stopped waiting.
                await asyncio.shield(self._give_back(given.result()))
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
        """Take back a sandbox whose caller did not get it."""

        async def take_back() -> None:
            self.core.leases.withdraw(given.lease.id, given.lease.token)
            self._obey(self.core.returned(given.member.id, self._now()))

        return self._operations.spawn(take_back())

    def _withdraw(self, grant: Grant) -> asyncio.Task[asyncio.Task[DutyfreeError | None] | None]:
        """Take back a grant whose caller did not get it. Its key may be used again at once."""
        self.core.leases.withdraw(grant.lease.id, grant.lease.token)
        return self._operations.spawn(self._take_back(grant))

    async def _take_back(self, grant: Grant, how: str = "has ended") -> asyncio.Task[DutyfreeError | None] | None:
        """End a grant. With the policy `cold`, returns the destruction of its sandbox."""
        if self._active.pop(grant.lease.id, None) is None:
            return None  # another task ends it already
        own = self._returned(grant, clean=await self._grants.end(grant, how))
        return self._operations.start(own) if own is not None else None

    def _returned(self, grant: Grant, *, clean: bool) -> Start[Wanted] | None:
        """Return the sandbox of a grant that has ended to the core.

        With the policy `cold`, returns the destruction of the sandbox, for the caller to begin.
        """
        if self._options.policy is not Policy.COLD:
            self._measure(grant)
        own = self._obey_but_own(self.core.returned(grant.member.id, self._now(), clean=clean), OperationKind.DESTROY)
        if self.on_end is not None:
            try:
                self.on_end(grant)
            except Exception as error:  # a bug in the listener must not fail the tenant's release
                context = {"message": "a listener of leases failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        return own

    def _measure(self, grant: Grant) -> None:
        """Measure the size of the sandbox: later sandboxes in its state are expected to be as large.

        The end of the lease is the right moment: the tenant's files are still there, and no action has to wait.
        """
        with suppress(DutyfreeError):
            usage = grant.sandbox.usage()
            if usage is not None:
                self.core.measured(grant.member.id, Size(usage.memory_bytes, usage.disk_bytes))

    def _late(self, request: Request[Wanted], timeout_s: float) -> CapacityError:
        after_s = self.costs.create_s(request.state)
        message = f"no sandbox was ready within {timeout_s:g} s; {len(self.core.queue)} other requests wait"
        hint = "give the pool more sandboxes, or request fewer at the same time"
        return CapacityError(message, hint=hint, retry_after_s=after_s)

    # Driving the core.

    def _schedule(self) -> None:
        """Set the timer for `_tick` to the core's `due_s`.

        A timer that fires earlier stays, and `_tick` then sets a new one: cheaper than to replace it at every event.
        """
        due_s = self.core.due_s
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
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
        except Exception as error:  # a bug in the planner: without plans, requests would wait for ever
            self._broken = error
            for request in tuple(self._waiting):
                self._refuse(request, SubstrateFailed(f"the pool's planner failed: {error!r}"))
            raise

    def _obey_but_own(self, commands: list[CoreCommand[Wanted]], kind: OperationKind) -> Start[Wanted] | None:
        """Obey the core. With the policy `cold`, the operation of `kind` at the end is returned, and not begun.

        Such an operation belongs to the caller alone, who runs it in its own task.
        """
        own: Start[Wanted] | None = None
        if self._options.policy is Policy.COLD and commands:
            last = commands[-1]
            if isinstance(last, Start) and last.kind is kind:
                own = last
                commands.pop()
        self._obey(commands)
        return own

    def _obey(self, commands: list[CoreCommand[Wanted]]) -> None:
        for command in commands:
            match command:
                case Start():
                    self._operations.start(command)
                case Abort(number):
                    self._operations.abort(number)
                case Give(request):
                    given = self._waiting.pop(request, None)
                    if given is None or given.done():
                        self._give_back(command)  # the caller was cancelled before the core knew of it
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
            return  # the pool is closing: `Operations.close` destroys what is left
        self.operation_ended.set()
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

    _now = staticmethod(time.monotonic)
