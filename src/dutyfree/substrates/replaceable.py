"""A sandbox that can replace the cell, container or machine that it consists of, under the same id."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, SandboxGone, SandboxReset, SubstrateFailed
from dutyfree.guest import GuestSandbox
from dutyfree.model import Phase, Span
from dutyfree.substrates.forking import multiply


class ReplaceableSandbox(GuestSandbox):
    """What cells and engines share of reset and fork. A call that replaces or freezes the inside holds `_turn`."""

    def __init__(self, sandbox_id: str, *arguments: Any, **options: Any) -> None:
        super().__init__(sandbox_id, *arguments, **options)
        self._turn = asyncio.Lock()
        self._ended = False

    @property
    def alive(self) -> bool:
        return not self._ended and super().alive

    async def reset(self) -> None:
        start_ns = time.monotonic_ns()
        self._check()
        try:
            async with self._turn:
                self._check()
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

    def _report(self, phase: Phase, start_ns: int) -> None:
        if self._runner.on_span is not None:
            self._runner.on_span(Span(phase, start_ns, time.monotonic_ns(), self.id))


def was_reset() -> SandboxReset:
    """The error for calls that were under way during a reset."""
    return SandboxReset("the sandbox was reset while this was under way")
