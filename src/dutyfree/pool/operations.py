"""Carries out operations on real sandboxes: creations, promotions, resets and destructions, each in its own task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from dutyfree.contract import Sandbox
from dutyfree.errors import DeadlineExceeded, DutyfreeError, SubstrateFailed
from dutyfree.pool.billing import Billing, SpanSink
from dutyfree.pool.commands import Start
from dutyfree.pool.costs import Costs, Step
from dutyfree.pool.grants import LiveSandbox
from dutyfree.pool.planner_input import OperationKind
from dutyfree.pool.staging import Stager
from dutyfree.pool.state import State
from dutyfree.pool.wanted import Wanted

T = TypeVar("T")

_DESTRUCTIONS: Final = 3
"""Attempts to destroy a sandbox. If all fail, the substrate removes the sandbox when it closes."""
_RETRY_S: Final = 0.2
"""The pause after the first failed attempt; it grows by as much with each further one."""

OnFinished = Callable[[Start[Wanted], str, DutyfreeError | None, bool], None]
"""Called with the operation, the id of a new sandbox, the error if it failed, and whether it was aborted."""


class Operations:
    """Runs operations concurrently and measures the duration of each of their steps."""

    def __init__(
        self,
        stager: Stager,
        costs: Costs,
        now: Callable[[], float],
        on_finished: OnFinished,
        make_sink: Callable[[], SpanSink],
        billing: Billing,
        *,
        measures: bool = True,
    ) -> None:
        """`make_sink` makes the receiver of the spans of a new sandbox. `measures`: whether costs are recorded."""
        self._make_sink = make_sink
        self._billing = billing
        self._measures = measures
        self._stager = stager
        self._costs = costs
        self._now = now
        self._on_finished = on_finished
        self._running: dict[int, asyncio.Task[DutyfreeError | None]] = {}
        self._destructions: dict[int, asyncio.Task[DutyfreeError | None]] = {}
        """Destructions are apart, because `close` does not cancel them: it would have to begin them again."""
        self._background: set[asyncio.Task[Any]] = set()
        self.live: dict[str, LiveSandbox] = {}
        """Every sandbox of the pool, leased ones included, by its id."""

    def start(self, start: Start[Wanted]) -> asyncio.Task[DutyfreeError | None]:
        """Begin an operation. The task never raises: it returns the error if the operation failed."""
        tasks = self._destructions if start.kind is OperationKind.DESTROY else self._running
        task = asyncio.get_running_loop().create_task(self._run(start))
        tasks[start.number] = task
        task.add_done_callback(lambda _: tasks.pop(start.number, None))
        return task

    def abort(self, number: int) -> None:
        """Cancel an operation. A sandbox that it has made is destroyed."""
        if (task := self._running.get(number)) is not None:
            task.cancel()

    def alive(self, sandbox: str) -> bool:
        """Whether a sandbox of the pool still lives."""
        return sandbox in self.live and self.live[sandbox].sandbox.alive

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run another coroutine in the background. `close` waits for its end and does not cancel it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def close(self) -> None:
        """Cancel operations in progress and destroy every sandbox. Raises SubstrateFailed if a destruction fails."""
        while tasks := {*self._running.values(), *self._destructions.values(), *self._background}:
            for task in self._running.values():
                task.cancel()
            await asyncio.wait(tasks)
        outcomes = await asyncio.gather(*(self._destroy(each) for each in tuple(self.live)), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def run_here(self, start: Start[Wanted]) -> DutyfreeError | None:
        """Run an operation in the task of the caller, which is cheaper than a task of its own. Returns its error.

        Cancelling aborts a creation. A destruction goes on in a task of its own.
        """
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        try:
            error = await self._run(start)
        except asyncio.CancelledError:
            self.start(start)
            raise
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError
        return error

    async def _run(self, start: Start[Wanted]) -> DutyfreeError | None:
        """Run one operation and report its end. The sandbox of a failed one is destroyed before the report."""
        sandbox, error, aborted = "", None, False
        try:
            sandbox = await self._carry_out(start)
        except DutyfreeError as failure:
            error = failure
        except asyncio.CancelledError:
            if start.kind is OperationKind.DESTROY:
                raise
            aborted = True
        except Exception as failure:  # a bug in a substrate must not keep requests waiting for ever
            error = SubstrateFailed(f"a {start.kind} failed: {failure!r}")
            error.__cause__ = failure
        if error is not None:
            self._billing.failed(str(start.kind), error)
        if (error or aborted) and start.member is not None and start.kind is not OperationKind.DESTROY:
            with suppress(SubstrateFailed):
                await self._destroy(start.member.id)
        self._on_finished(start, sandbox, error, aborted)
        return error

    async def _carry_out(self, start: Start[Wanted]) -> str:
        member = start.member
        if member is None:
            return await self._create(start)
        started_s = self._now()
        if start.kind is OperationKind.PROMOTE:
            await self._climb(member.id, start.goal, member.state, start.state)
        elif start.kind is OperationKind.RESET:
            await self.live[member.id].sandbox.reset()
            self._observe(Step.reset(member.made_in), started_s)
        else:
            await self._destroy(member.id)
            self._observe(Step.destroy(), started_s)
        return member.id

    async def _create(self, start: Start[Wanted]) -> str:
        spans, started_s = self._make_sink(), self._now()
        sandbox = await self._created(start, spans)
        self._observe(Step.create(start.made_in), started_s)
        self._billing.creations += 1
        self.live[sandbox.id] = LiveSandbox(sandbox, spans)
        if start.made_in != start.state:
            try:
                await self._climb(sandbox.id, start.goal, start.made_in, start.state)
            except BaseException:
                with suppress(SubstrateFailed):
                    await self._destroy(sandbox.id)
                raise
        return sandbox.id

    def _observe(self, step: Step, started_s: float) -> None:
        if self._measures:
            self._costs.observe(step, self._now() - started_s)

    async def _created(self, start: Start[Wanted], spans: SpanSink) -> Sandbox:
        """Create a sandbox. Raises DeadlineExceeded for a stuck creation, which would hold its place for minutes."""
        if start.within_s is None:
            return await self._stager.create(start.goal, start.state, spans)
        try:
            async with asyncio.timeout(start.within_s) as limit:
                return await self._stager.create(start.goal, start.state, spans)
        except TimeoutError:
            if not limit.expired():
                raise
            usual_s = self._costs.estimate(Step.create(start.made_in)).mean_s
            message = f"a creation did not end within {start.within_s:.3g} s; the mean is {usual_s:.2g} s"
            raise DeadlineExceeded(message) from None

    async def _climb(self, sandbox: str, wanted: Wanted, have: State, to: State) -> None:
        """Add stages one by one, to measure the duration of each."""
        live = self.live[sandbox]
        while have != to:
            following = to.cut(have.depth + 1)
            started_s = self._now()
            await self._stager.promote(live.sandbox, wanted, have, following, live.spans)
            self._observe(Step.stage(following.digests[-1]), started_s)
            have = following

    async def _destroy(self, sandbox: str) -> None:
        """Destroy a sandbox, unless that was done already. Raises SubstrateFailed after `_DESTRUCTIONS` attempts."""
        live = self.live.get(sandbox)
        if live is None:
            return
        for attempt in range(1, _DESTRUCTIONS + 1):
            try:
                await live.sandbox.destroy()
                break
            except SubstrateFailed:
                if attempt == _DESTRUCTIONS:
                    self.live.pop(sandbox, None)
                    raise
                await asyncio.sleep(_RETRY_S * attempt)
        self.live.pop(sandbox, None)  # `close` may have destroyed it at the same time
