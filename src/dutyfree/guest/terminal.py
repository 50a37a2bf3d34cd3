"""A command on a pseudo-terminal inside a sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Self

from dutyfree.checked import data_bytes, whole
from dutyfree.contract import Terminal
from dutyfree.guest.exchanges import OnTerminal
from dutyfree.guest.runner import Runner
from dutyfree.model import Action, Command, Observation, User
from dutyfree.wire.fields import encode_text
from dutyfree.wire.messages import MAX_SIGNAL, Mode, Run, RunFlag

_START_TIMEOUT_S: Final = 10.0
_MAX_SIDE: Final = 65535


class GuestTerminal(Terminal):
    """Raw bytes both ways; lives until its command ends or it is closed."""

    def __init__(self, runner: Runner, exchange: OnTerminal) -> None:
        self._runner = runner
        self._exchange = exchange
        self._observation: Observation | None = None

    @classmethod
    async def open(
        cls,
        runner: Runner,
        command: Command,
        *,
        rows: int,
        cols: int,
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: User | None = None,
    ) -> Self:
        """Start the command and wait until the guest has done so."""
        _check_size(rows, cols)
        action = Action(command, cwd=cwd, env=env or {}, user=user)
        encoded_user, environment = runner.identity(user)
        exchange = OnTerminal(runner.known_limits)
        command = action.command
        is_line = isinstance(command, str)
        request = Run(
            id=0,
            mode=Mode.SHELL if is_line else Mode.ARGV,
            args=(encode_text(command),) if isinstance(command, str) else tuple(map(encode_text, command)),
            env=environment.terminal_entries(action.env),
            cwd=runner.directory(action.cwd, user),
            flags=RunFlag.PTY | RunFlag.STDIN,
            credit=exchange.output_credit_bytes,
            rows=rows,
            cols=cols,
            user=encoded_user,
        )
        runner.begin(exchange, request, _START_TIMEOUT_S)
        await exchange.opened()
        return cls(runner, exchange)

    async def read(self) -> bytes:
        taken = await self._exchange.take()
        return b"" if taken is None else taken[1]

    async def write(self, data: bytes | str) -> None:
        await self._exchange.give(data_bytes("data", data))

    async def resize(self, rows: int, cols: int) -> None:
        _check_size(rows, cols)
        if not self._exchange.finished:
            self._exchange.resize(rows, cols)

    async def signal(self, number: int) -> None:
        number = whole("the signal", number, least=1, most=MAX_SIGNAL)
        if not self._exchange.finished:
            self._exchange.signal(number)

    async def wait(self) -> Observation:
        end = await self._exchange.result()
        if self._observation is None:
            self._observation = self._runner.observe(self._exchange, end, end_ns=self._exchange.end_ns)
        return self._observation

    async def close(self) -> None:
        self._exchange.abandon()
        await self._exchange.settled()


def _check_size(rows: int, cols: int) -> None:
    whole("rows", rows, least=1, most=_MAX_SIDE)
    whole("cols", cols, least=1, most=_MAX_SIDE)
