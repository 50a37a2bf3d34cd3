"""A sandbox that can replace the cell, container or machine that it consists of, under the same id."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, SandboxGone, SandboxReset, SubstrateFailed, Unsupported
from dutyfree.guest import GuestSandbox
from dutyfree.guest.runner import paused
from dutyfree.model import Phase, Span
from dutyfree.substrates.forking import multiply
from dutyfree.substrates.shared_task import run_to_end
from dutyfree.wire.action_channel import ActionChannel


class ReplaceableSandbox(GuestSandbox):
    """What cells and engines share of reset and fork. A call that replaces or freezes the inside holds `_turn`."""

    def __init__(self, sandbox_id: str, *arguments: Any, **options: Any) -> None:
        super().__init__(sandbox_id, *arguments, **options)
        self._turn = asyncio.Lock()
        self._ended = False
        self._paused_s: float | None = None
        """When it was paused; None while it runs."""

    @property
    def alive(self) -> bool:
        return not self._ended and super().alive

    @property
    def paused(self) -> bool:
        return self._paused_s is not None

    async def pause(self) -> None:
        self._check()
        async with self._turn:
            self._check()
            if self._paused_s is not None:
                return
            self._paused_s = time.monotonic()
            for channel in self._channels():
                channel.standing_still = channel.refuses = True
            try:
                await run_to_end(self._stop())
            except BaseException:
                with suppress(InfraFailed):  # the first error counts
                    await self._continue()
                raise

    async def resume(self) -> None:
        self._check()
        async with self._turn:
            self._check()
            await self._continue()

    async def _continue(self) -> None:
        """End the pause, if there is one. The deadlines of what is under way move by its length."""
        if self._paused_s is None:
            return
        stood_s = time.monotonic() - self._paused_s
        for channel in self._channels():
            channel.stood_still(stood_s, clock_went_on=not self._clock_stops)
        try:
            await run_to_end(self._go())
        finally:
            self._paused_s = None
            for channel in self._channels():
                channel.standing_still = channel.refuses = False

    async def _stop(self) -> None:
        """Stop all processes; `_turn` is held. What was stopped before an error is set going by `_go`."""
        raise Unsupported("this substrate cannot pause its sandboxes")

    async def _go(self) -> None:
        """Let all processes go on."""

    @property
    def _clock_stops(self) -> bool:
        """Whether the clock of the guest's deadlines stands still during a pause, too."""
        return False

    def _channels(self) -> Sequence[ActionChannel]:
        """The channels of all guests."""
        return [self._runner.channel]

    async def reset(self) -> None:
        start_ns = time.monotonic_ns()
        self._check()
        try:
            async with self._turn:
                self._check()
                await self._continue()
                await self._replace()
        except BaseException:
            self._end_calls(SubstrateFailed("the sandbox ended with a reset that failed"))
            raise
        self._report(Phase.RESET, start_ns)

    @abstractmethod
    async def _replace(self) -> None:
        """Replace the inside by a fresh one; `_turn` is held. A failure ends the sandbox."""

    async def _multiplied(self, create: Callable[[], Awaitable[Sandbox]], count: int, at_once: int) -> list[Sandbox]:
        """`count` forks, made by `create`, reported as one span."""
        start_ns = time.monotonic_ns()
        forks = await multiply(create, count, at_once=at_once)
        self._report(Phase.FORK, start_ns)
        return forks

    def _end_calls(self, error: InfraFailed) -> None:
        """Refuse calls from now on, and fail those under way: a half-replaced sandbox is left to be destroyed."""
        self._ended = True
        self._runner.channel.fail(error)

    def _check(self) -> None:
        if not self.alive:
            raise SandboxGone(f"sandbox {self.id} is gone")

    def _check_running(self) -> None:
        self._check()
        if self.paused:
            raise paused(self.id)

    def _report(self, phase: Phase, start_ns: int) -> None:
        if self._runner.on_span is not None:
            self._runner.on_span(Span(phase, start_ns, time.monotonic_ns(), self.id))


def was_reset() -> SandboxReset:
    """The error for calls that were under way during a reset."""
    return SandboxReset("the sandbox was reset while this was under way")
