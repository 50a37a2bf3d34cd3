"""A command on a pseudo-terminal as the stream of a background process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from types import TracebackType
from typing import Self

from dutyfree.contract import ActionStream, Terminal
from dutyfree.errors import InvalidRequest
from dutyfree.model import Chunk, Observation


class TerminalStream(ActionStream):
    """Opens a terminal when its block is entered; all output is stdout. Calls wait until the terminal is open."""

    def __init__(self, open_terminal: Callable[[], Awaitable[Terminal]], timeout_s: float) -> None:
        self._open_terminal = open_terminal
        self._timeout_s = timeout_s
        self._terminal: Terminal | None = None
        self._is_tried = asyncio.Event()
        """Set once the terminal is open, or could not be opened."""
        self._timer: asyncio.TimerHandle | None = None
        self._timing_out: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._terminal = await self._open_terminal()
        finally:
            self._is_tried.set()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._time_out, self._terminal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._terminal is not None:
            await self._terminal.close()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        assert self._terminal is not None
        while data := await self._terminal.read():
            yield Chunk("stdout", data)

    async def write(self, data: bytes) -> None:
        if (terminal := await self._opened()) is not None:
            await terminal.write(data)

    async def end_input(self) -> None:
        raise InvalidRequest("a terminal has no end of input", hint="write b'\\x04' (Ctrl-D)")

    async def signal(self, number: int) -> None:
        if (terminal := await self._opened()) is not None:
            await terminal.signal(number)

    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal's window."""
        if (terminal := await self._opened()) is not None:
            await terminal.resize(rows, cols)

    async def kill(self) -> None:
        if (terminal := await self._opened()) is not None:
            await terminal.close()

    async def wait(self) -> Observation:
        assert self._terminal is not None
        seen = await self._terminal.wait()
        return seen if self._timing_out is None else replace(seen, timed_out=True)

    async def _opened(self) -> Terminal | None:
        """The terminal, once it is open; None if it could not be opened, and `__aenter__` has raised."""
        await self._is_tried.wait()
        return self._terminal

    def _time_out(self, terminal: Terminal) -> None:
        self._timing_out = asyncio.ensure_future(terminal.close())
