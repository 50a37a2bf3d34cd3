"""Waiting for a port of a sandbox, and forwarding one to a port of this machine."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from dutyfree.checked import text
from dutyfree.contract import Connection
from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest, PortFailed
from dutyfree.model.action import check_timeout
from dutyfree.model.port import check_port
from dutyfree.values import dataclass

DEFAULT_PORT_TIMEOUT_S = 30.0
MAX_FORWARDED: Final = 256
"""Connections of one forward at a time; further ones are closed at once."""
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.2
_COPY_BYTES: Final = 64 * 1024
Dial = Callable[[float], Awaitable[Connection]]
"""Connect to the port, within so many seconds."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A port of this machine behind which is a port of the sandbox."""

    address: tuple[str, int]
    """Where to connect to, on this machine."""
    port: int
    """The port inside the sandbox."""

    @property
    def url(self) -> str:
        """The address as an HTTP URL."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_dial(port: int, address: str, timeout_s: float) -> None:
    """Raise InvalidRequest for what no connection can be made with."""
    check_port(port)
    text("address", address)
    check_timeout(timeout_s)


async def wait_for_port(dial: Dial, port: int, timeout_s: float) -> None:
    """Return once a connection can be made; raise PortFailed (ETIMEDOUT) if that takes longer than `timeout_s`."""
    check_timeout(timeout_s)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while (left_s := deadline_s - loop.time()) > 0:
        try:
            connection = await dial(left_s)
        except PortFailed:
            await asyncio.sleep(min(pause_s, max(0.0, deadline_s - loop.time())))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        else:
            await connection.close()
            return
    raise PortFailed(
        f"nothing listens on port {port} after {timeout_s:g} s",
        errno=errno.ETIMEDOUT,
        hint="check the output of the program that should, and that it listens on 127.0.0.1 or 0.0.0.0",
    )


@asynccontextmanager
async def forward(
    dial: Dial, port: int, local_port: int, local_address: str, timeout_s: float
) -> AsyncIterator[Forward]:
    """Listen on this machine for the length of the block; each connection is carried on to the sandbox."""
    check_port(port)
    check_port(local_port, least=0)
    check_timeout(timeout_s)
    text("local_address", local_address)
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            if len(serving) <= MAX_FORWARDED:
                async with await dial(timeout_s) as connection:
                    await _carry(connection, reader, writer)
        except (DutyfreeError, OSError, ExceptionGroup):
            pass  # the connection on this machine ends as the one in the sandbox did
        finally:
            serving.discard(task)
            writer.transport.abort()

    try:
        server = await asyncio.start_server(serve, local_address, local_port, limit=_COPY_BYTES)
    except OSError as error:
        place = f"{local_address} port {local_port}"
        if error.errno == errno.EADDRINUSE:
            raise CapacityError(
                f"{place} of this machine is in use", hint="use local_port=0 for any free port"
            ) from None
        raise InvalidRequest(f"cannot listen on {place} of this machine: {error.strerror}") from error
    try:
        host, bound = server.sockets[0].getsockname()[:2]
        yield Forward((host, bound), port)
    finally:
        server.close()
        for task in tuple(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        with suppress(OSError):
            await server.wait_closed()


async def _carry(connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with asyncio.TaskGroup() as both:
        both.create_task(_to_sandbox(connection, reader))
        both.create_task(_from_sandbox(connection, writer))


async def _to_sandbox(connection: Connection, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_COPY_BYTES):
        await connection.write(data)
    await connection.end_input()


async def _from_sandbox(connection: Connection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.read(_COPY_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    await writer.drain()
