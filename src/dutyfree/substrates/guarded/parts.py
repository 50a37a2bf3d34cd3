"""Streams, sessions, terminals and watches of a sandbox behind a gate."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from types import TracebackType
from typing import Self, TypeVar

from dutyfree.checked import data_bytes
from dutyfree.contract import ActionStream, Session, Terminal, Watch
from dutyfree.errors import InfraFailed, SandboxGone
from dutyfree.model import DEFAULT_OUTPUT_LIMIT_BYTES, DEFAULT_TIMEOUT_S, Chunk, FileEvent, Observation
from dutyfree.substrates.guarded.gate import Gate

T = TypeVar("T")


class GuardedStream(ActionStream):
    """An action under way, behind `gate`."""

    def __init__(self, inner: ActionStream, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def __aenter__(self) -> Self:
        async with self._gate:
            await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _leave(self._inner.__aexit__(kind, error, trace), self._gate)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return _each(self._inner, self._gate)

    async def write(self, data: bytes) -> None:
        async with self._gate:
            await self._inner.write(data)

    async def end_input(self) -> None:
        async with self._gate:
            await self._inner.end_input()

    async def signal(self, number: int) -> None:
        async with self._gate:
            await self._inner.signal(number)

    async def kill(self) -> None:
        async with self._gate:
            await self._inner.kill()

    async def wait(self) -> Observation:
        async with self._gate:
            return await self._inner.wait()


class GuardedSession(Session):
    """A session, behind `gate`."""

    def __init__(self, inner: Session, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def alive(self) -> bool:
        return not self._gate.gone and self._inner.alive

    async def run(
        self,
        line: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        async with self._gate:
            return await self._inner.run(line, timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)

    async def interrupt(self) -> None:
        async with self._gate:
            await self._inner.interrupt()

    async def close(self) -> None:
        if not self._gate.gone:
            async with self._gate:
                await self._inner.close()


class GuardedTerminal(Terminal):
    """A terminal, behind `gate`."""

    def __init__(self, inner: Terminal, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def read(self) -> bytes:
        async with self._gate:
            return await self._inner.read()

    async def write(self, data: bytes | str) -> None:
        async with self._gate:
            await self._inner.write(data_bytes("data", data))

    async def resize(self, rows: int, cols: int) -> None:
        async with self._gate:
            await self._inner.resize(rows, cols)

    async def signal(self, number: int) -> None:
        async with self._gate:
            await self._inner.signal(number)

    async def wait(self) -> Observation:
        async with self._gate:
            return await self._inner.wait()

    async def close(self) -> None:
        if not self._gate.gone:
            async with self._gate:
                await self._inner.close()


class GuardedWatch(Watch):
    """A watched directory, behind `gate`."""

    def __init__(self, inner: Watch, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    async def __aenter__(self) -> Self:
        async with self._gate:
            await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _leave(self._inner.__aexit__(kind, error, trace), self._gate)

    def __aiter__(self) -> AsyncIterator[FileEvent]:
        return _each(self._inner, self._gate)


async def _leave(leaving: Awaitable[None], gate: Gate) -> None:
    """Leave a block, also of a sandbox that is gone: its end is no news then."""
    try:
        await leaving
    except (InfraFailed, SandboxGone) as failure:
        was_gone = gate.gone
        await gate.end_after(failure)
        if not was_gone:
            raise


async def _each(items: AsyncIterable[T], gate: Gate) -> AsyncIterator[T]:
    """The items, each of them fetched through the gate."""
    iterator = aiter(items)
    while True:
        async with gate:
            item = await anext(iterator, None)
        if item is None:
            return
        yield item
