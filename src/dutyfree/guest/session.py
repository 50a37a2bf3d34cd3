"""A persistent shell inside a sandbox."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Final, Self

from dutyfree.checked import text
from dutyfree.contract import Session
from dutyfree.errors import SandboxGone, SessionEnded, SubstrateFailed
from dutyfree.guest.exchanges import MAX_SIZE_BYTES, Collected, Opened
from dutyfree.guest.runner import Runner, milliseconds, paused
from dutyfree.model import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Action, Observation, User
from dutyfree.wire.fields import encode_text
from dutyfree.wire.messages import ExitFlag, Mode, Run

_OPEN_TIMEOUT_S: Final = 10.0


class GuestSession(Session):
    """Lines run one at a time, each under an id of its own."""

    def __init__(self, runner: Runner, shell: Opened) -> None:
        self._runner = runner
        self._shell = shell
        self._turn = asyncio.Lock()
        self._line: Collected | None = None
        self._ended = False

    @classmethod
    async def open(
        cls, runner: Runner, cwd: str | None, env: Mapping[str, str] | None, user: User | None = None
    ) -> Self:
        """Start the shell and wait until it is up."""
        shell = Opened(runner.known_limits)
        encoded_user, environment = runner.identity(user)
        request = Run(
            id=0,
            mode=Mode.SESSION,
            env=environment.entries(env or {}),
            cwd=runner.directory(cwd, user),
            user=encoded_user,
        )
        runner.begin(shell, request, _OPEN_TIMEOUT_S)
        await shell.opened()
        if not shell.up:
            raise SubstrateFailed("the session's shell ended before it was up")
        return cls(runner, shell)

    @property
    def alive(self) -> bool:
        return not self._ended and not self._shell.finished and not self._shell.abandoned

    async def run(
        self,
        line: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        action = Action(text("the line", line), timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)
        async with self._turn:
            if self._runner.channel.refuses:
                raise paused(self._runner.sandbox_id)
            if self._line is not None:
                # A line that was cancelled may not have ended yet.
                await self._line.settled()
            self._check()
            return await self._run(line, action)

    async def _run(self, line: str, action: Action) -> Observation:
        exchange = self._line = Collected(action.output_limit_bytes, self._runner.known_limits)
        request = Run(
            id=0,
            mode=Mode.LINE,
            args=(encode_text(line),),
            timeout_ms=milliseconds(action.timeout_s),
            output_limit=min(action.output_limit_bytes, MAX_SIZE_BYTES),
            credit=exchange.output_credit_bytes,
            session=self._shell.id,
        )
        end = await self._runner.collect(exchange, request, stdin=None, timeout_s=action.timeout_s)
        if end.flags & ExitFlag.SESSION_ENDED:
            self._ended = True
        return self._runner.observe_collected(exchange, end)

    async def interrupt(self) -> None:
        if self._line is not None and not self._line.finished:
            self._line.signal(signal.SIGINT)

    async def close(self) -> None:
        self._shell.abandon()
        await self._shell.settled()

    def _check(self) -> None:
        if not self._runner.channel.alive:
            raise SandboxGone(f"sandbox {self._runner.sandbox_id} is gone")
        if not self.alive:
            raise SessionEnded("the session's shell has exited", hint="open another session")
