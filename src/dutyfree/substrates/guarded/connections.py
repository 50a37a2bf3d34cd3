"""Connections, listeners and datagrams of a sandbox behind a gate."""

from __future__ import annotations

from dutyfree.checked import data_bytes
from dutyfree.contract import DEFAULT_CONNECTION_READ_BYTES, Connection, Datagrams, Listener
from dutyfree.substrates.guarded.gate import Gate


class GuardedConnection(Connection):
    """A connection, behind `gate`."""

    def __init__(self, inner: Connection, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def peer(self) -> tuple[str, int]:
        return self._inner.peer

    @property
    def local(self) -> tuple[str, int]:
        return self._inner.local

    async def read(self, limit_bytes: int = DEFAULT_CONNECTION_READ_BYTES) -> bytes:
        async with self._gate:
            return await self._inner.read(limit_bytes)

    async def write(self, data: bytes | str) -> None:
        async with self._gate:
            await self._inner.write(data_bytes("data", data))

    def write_now(self, data: bytes | str, *, last: bool = False) -> bool:
        return not self._gate.gone and self._inner.write_now(data, last=last)

    async def end_input(self) -> None:
        async with self._gate:
            await self._inner.end_input()

    async def close(self) -> None:
        if not self._gate.gone:
            async with self._gate:
                await self._inner.close()


class GuardedListener(Listener):
    """A listener, behind `gate`."""

    def __init__(self, inner: Listener, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def local(self) -> tuple[str, int]:
        return self._inner.local

    async def accept(self) -> Connection:
        async with self._gate:
            return GuardedConnection(await self._inner.accept(), self._gate)

    async def close(self) -> None:
        if not self._gate.gone:
            async with self._gate:
                await self._inner.close()


class GuardedDatagrams(Datagrams):
    """Datagrams, behind `gate`."""

    def __init__(self, inner: Datagrams, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def local(self) -> tuple[str, int]:
        return self._inner.local

    async def receive(self) -> tuple[bytes, tuple[str, int]]:
        async with self._gate:
            return await self._inner.receive()

    async def send(self, data: bytes, to: tuple[str, int]) -> None:
        async with self._gate:
            await self._inner.send(data, to)

    async def close(self) -> None:
        if not self._gate.gone:
            async with self._gate:
                await self._inner.close()
