"""What is done to sandboxes: creations, promotions, resets and destructions, each a task that holds its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Protocol

from dutyfree.contract import Sandbox
from dutyfree.errors import DeadlineExceeded, DutyfreeError, SubstrateFailed
from dutyfree.pool.costs import Costs, Operation
from dutyfree.pool.ladders import Wanted
from dutyfree.pool.roster import Ear, Member, Roster
from dutyfree.pool.staging import Stager
from dutyfree.pool.state import State
from dutyfree.pool.view import Kind

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 30.0
LEAST_PATIENCE_S: Final = 30.0
_PATIENCE: Final = 20
"""Times what nineteen in twenty take: a creation that has taken that long, and `LEAST_PATIENCE_S`, is stuck."""
_KNOWN: Final = 10
"""Creations from an image before anything is known about how long they can take."""
_DESTRUCTIONS: Final = 3
"""That are tried, one after the other fails; what is left then goes with the substrate."""


class Told(Protocol):
    """Who learns how works end."""

    def ready(self, member: Member) -> None:
        """It stands in its state, and is nobody's."""

    def failed(self, kind: Kind, wanted: Wanted, error: DutyfreeError) -> None:
        """What was to become a sandbox on the way to `wanted` did not."""

    def ended(self) -> None:
        """A place is free."""


class Works:
    """Carries works out. What is ordered takes its place in the roster at once; `told` learns how it ends."""

    def __init__(self, stager: Stager, roster: Roster, costs: Costs, told: Told, now: Callable[[], float]) -> None:
        self._stager = stager
        self._roster = roster
        self._costs = costs
        self._told = told
        self._now = now
        self._tasks: set[asyncio.Task[None]] = set()
        self._spawned: set[asyncio.Task[None]] = set()
        self._pauses: dict[State, tuple[float, float]] = {}
        """After failures: until when no more is made, and how long the pause is."""

    def create(self, wanted: Wanted, state: State) -> None:
        """Make a new sandbox in `state`, which lies on the way to what is wanted."""
        self._begin(Kind.CREATE, state, self._create(wanted, state), wanted)

    def promote(self, member: Member, wanted: Wanted, state: State) -> None:
        """Add the stages to a member that lead to `state`."""
        member.wanted = wanted
        self._begin(Kind.PROMOTE, state, self._promote(member, state), wanted, member)

    def reset(self, member: Member) -> None:
        """Take a member back to the state that it was made in."""
        self._begin(Kind.RESET, member.made_in, self._reset(member), member.wanted, member)

    def destroy(self, member: Member) -> None:
        """End a member."""
        self._begin(Kind.DESTROY, member.state, self._destroy(member), member.wanted, member)

    def paused(self, state: State) -> bool:
        """Whether creations in this state have failed so lately that none is begun: they would fail again."""
        return self._pauses.get(state, (0.0, 0.0))[0] > self._now()

    async def close(self) -> None:
        """Cancel works that are under way, and wait for their end and for all that was spawned."""
        while self._tasks or self._spawned:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks | self._spawned)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let something else that ends by itself go on in the background; `close` waits for it."""
        return _kept(work, self._spawned)

    def _begin(
        self,
        kind: Kind,
        state: State,
        work: Coroutine[Any, Any, Member | None],
        wanted: Wanted,
        member: Member | None = None,
    ) -> None:
        size = member.size if member is not None else self._costs.size(state)
        number = self._roster.begin(kind, state, self._now(), size)
        _kept(
            self._carry_out(kind, number, work, wanted, member), self._spawned if kind is Kind.DESTROY else self._tasks
        )

    async def _carry_out(
        self,
        kind: Kind,
        number: int,
        work: Coroutine[Any, Any, Member | None],
        wanted: Wanted,
        member: Member | None,
    ) -> None:
        ready: Member | None = None
        failure: DutyfreeError | None = None
        try:
            ready = await work
        except DutyfreeError as error:
            failure = error
        except Exception as error:  # a bug of a substrate's must not look like patience
            failure = SubstrateFailed(f"a {kind} failed: {error!r}")
            failure.__cause__ = error
        finally:
            if ready is None and member is not None and kind is not Kind.DESTROY:
                with suppress(SubstrateFailed):
                    await ended(member)
            self._roster.end(number)
        if failure is not None:
            self._told.failed(kind, wanted, failure)
        elif ready is not None:
            self._told.ready(ready)
        self._told.ended()

    async def _create(self, wanted: Wanted, state: State) -> Member:
        made_in, ear = self._stager.made_in(wanted, state), Ear()
        start_s = self._now()
        try:
            sandbox = await self._made(wanted, state, made_in, ear)
        except Exception:
            self._pause(state)
            raise
        self._costs.observe(Operation.create(made_in), self._now() - start_s)
        member = Member(sandbox, wanted, made_in, made_in, ear, self._costs.size(made_in))
        try:
            await self._climb(member, state)
        except BaseException as error:
            if isinstance(error, Exception):
                self._pause(state)
            with suppress(SubstrateFailed):
                await ended(member)
            raise
        self._pauses.pop(state, None)
        return member

    async def _made(self, wanted: Wanted, state: State, made_in: State, ear: Ear) -> Sandbox:
        """A new sandbox; DeadlineExceeded for one that is stuck, as it would keep its place from others for minutes."""
        known = self._costs.estimate(Operation.create(made_in))
        within_s = max(LEAST_PATIENCE_S, _PATIENCE * known.p95_s) if known.count >= _KNOWN else None
        try:
            async with asyncio.timeout(within_s) as limit:
                return await self._stager.create(wanted, state, ear)
        except TimeoutError:
            if not limit.expired():
                raise
            usual = f"{known.mean_s:.2g} s are usual"
            raise DeadlineExceeded(f"a creation did not end within {within_s:.3g} s; {usual}") from None

    async def _promote(self, member: Member, state: State) -> Member:
        await self._climb(member, state)
        return member

    async def _climb(self, member: Member, state: State) -> None:
        """Stage by stage, so that the price of each is known."""
        while member.state != state:
            following = state.cut(member.state.depth + 1)
            start_s = self._now()
            await self._stager.promote(member.sandbox, member.wanted, member.state, following, member.ear)
            self._costs.observe(Operation.stage(following.digests[-1]), self._now() - start_s)
            member.state = following

    async def _reset(self, member: Member) -> Member:
        start_s = self._now()
        await member.sandbox.reset()
        self._costs.observe(Operation.reset(member.made_in), self._now() - start_s)
        member.state = member.made_in
        return member

    async def _destroy(self, member: Member) -> None:
        start_s = self._now()
        await ended(member)
        self._costs.observe(Operation.destroy(), self._now() - start_s)

    def _pause(self, state: State) -> None:
        pause_s = min(2 * self._pauses.get(state, (0.0, _FIRST_PAUSE_S / 2))[1], _LONGEST_PAUSE_S)
        self._pauses[state] = (self._now() + pause_s, pause_s)


def _kept(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def ended(member: Member) -> None:
    """End a member. Raises SubstrateFailed for one that does not end after several tries: it still holds something."""
    for tries in range(1, _DESTRUCTIONS + 1):
        try:
            await member.sandbox.destroy()
        except SubstrateFailed:
            if tries == _DESTRUCTIONS:
                raise
            await asyncio.sleep(_FIRST_PAUSE_S * 2**tries)
        else:
            return
