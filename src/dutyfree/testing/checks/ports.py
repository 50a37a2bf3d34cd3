"""Ports: connections between the host and programs of a sandbox."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Final

from dutyfree.contract import Connection, Sandbox
from dutyfree.errors import DutyfreeError, InvalidRequest, PortFailed, SandboxReset
from dutyfree.model import Action, Capability
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.PORTS,)
_PORT: Final = 8000
_LARGE_BYTES: Final = 8 * 1024**2
_MANY: Final = 100
_HEAD: Final = "import os, socket, struct, threading, hashlib\n"
_SERVE: Final = """
server = socket.create_server((ADDRESS, PORT), backlog=512)
print("up", flush=True)
while True:
    client, _ = server.accept()
    threading.Thread(target=serve, args=(client,), daemon=True).start()
"""
ECHO: Final = """
def serve(client):
    while data := client.recv(65536):
        client.sendall(data)
    client.close()
"""
SUMS: Final = """
def serve(client):
    total = hashlib.sha256()
    while data := client.recv(65536):
        total.update(data)
    client.sendall(total.digest())
    data = bytes(range(256)) * 4096
    for _ in range(8):
        client.sendall(data)
    client.close()
"""
HALF: Final = """
def serve(client):
    client.sendall(b"all that I say")
    client.shutdown(socket.SHUT_WR)
    heard = b""
    while data := client.recv(65536):
        heard += data
    open("/tmp/heard", "wb").write(heard)
    client.close()
"""
EARLY: Final = """
def serve(client):
    client.recv(1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
"""
CALL: Final = """
client = socket.create_connection(("127.0.0.1", PORT), timeout=20)
client.sendall(b"from inside")
client.shutdown(socket.SHUT_WR)
print(client.recv(100).decode())
"""
ASK: Final = """
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.settimeout(20)
client.sendto(b"x" * 5000, ("127.0.0.1", PORT))
client.sendto(b"question", ("127.0.0.1", PORT))
print(client.recv(100).decode())
"""


def script(body: str, *, port: int = _PORT, address: str = "127.0.0.1") -> list[str]:
    """A Python program for the sandbox."""
    return ["python3", "-c", f"ADDRESS, PORT = {address!r}, {port}\n{_HEAD}{body}"]


@asynccontextmanager
async def serving(box: Sandbox, serve: str, *, port: int = _PORT, address: str = "127.0.0.1") -> AsyncIterator[None]:
    """A server inside the sandbox, for the length of the block."""
    if not (await run(box, "command -v python3")).ok:
        raise expect.NotRun("this check needs python3 in the sandbox")
    async with box.stream(Action(script(serve + _SERVE, port=port, address=address), timeout_s=120)) as server:
        async for chunk in server:
            expect.equal(chunk.data, b"up\n", "what the server prints once it listens")
            break
        yield


@check("ports.dial", "bytes go both ways between the host and a server in the sandbox", needs=NEEDS)
async def dial(context: Context) -> None:
    box = await context.sandbox()
    async with serving(box, ECHO), await box.dial(_PORT) as connection:
        expect.equal(connection.peer, ("127.0.0.1", _PORT), "the address of the server")
        for word in (b"hello", bytes(range(256)), b"\0" * 3):
            await connection.write(word)
            expect.equal(await _exactly(connection, len(word)), word, "the echo")
        await connection.write(b"abcdef")
        expect.equal(await connection.read(2), b"ab", "the first bytes, with a limit")
        expect.equal(await _exactly(connection, 4), b"cdef", "the rest of them")


@check("ports.large", "much data passes unchanged in both directions", needs=NEEDS)
async def large(context: Context) -> None:
    box = await context.sandbox()
    data = bytes(range(256)) * 4096
    count = _LARGE_BYTES // len(data)
    sent = hashlib.sha256(data * count)
    async with serving(box, SUMS), await box.dial(_PORT) as connection:
        for _ in range(count):
            await connection.write(data)
        await connection.end_input()
        seen = await _to_the_end(connection)
        expect.equal(seen[:32], sent.digest(), "the checksum of what the server got")
        expect.equal(hashlib.sha256(seen[32:]).digest(), sent.digest(), "the checksum of what the server sent")


@check("ports.half-close", "each side can close its own direction and still read", needs=NEEDS)
async def half_close(context: Context) -> None:
    box = await context.sandbox()
    async with serving(box, ECHO), await box.dial(_PORT) as connection:
        await connection.write(b"last words")
        await connection.end_input()
        await connection.end_input()
        expect.equal(await _to_the_end(connection), b"last words", "the echo after the end of the input")
        with expect.raises(InvalidRequest, what="writing after end_input"):
            await connection.write(b"more")
    async with serving(box, HALF, port=8001), await box.dial(8001) as connection:
        expect.equal(await _to_the_end(connection), b"all that I say", "what the server said")
        await connection.write(b"an answer to one who has finished")
        await connection.end_input()
        await expect.soon(
            lambda: _is(box.run(Action("cat /tmp/heard")), b"an answer to one who has finished"),
            "the server did not hear what was written after it had closed its side",
        )


@check("ports.refused", "a port without a server is a PortFailed with ECONNREFUSED, at once", needs=NEEDS)
async def refused(context: Context) -> None:
    box = await context.sandbox()
    with expect.raises(PortFailed, what="dialling a port without a server") as caught:
        await box.dial(_PORT)
    expect.equal(_errno(caught), errno.ECONNREFUSED, "the errno")
    for address, port in (("localhost", 80), ("127.0.0.1", 0), ("127.0.0.1", 65536)):
        with expect.raises(InvalidRequest, what=f"dialling {address} port {port}"):
            await box.dial(port, address=address)
    with expect.raises(PortFailed, what="dialling an address that is not the sandbox's"):
        await box.dial(80, address="192.0.2.1")
    expect.exited(await run(box, "true"))


@check(
    "ports.broken-off", "a program that breaks its connection off is a PortFailed, not a broken sandbox", needs=NEEDS
)
async def broken_off(context: Context) -> None:
    box = await context.sandbox()
    async with serving(box, EARLY), await box.dial(_PORT) as connection:
        with expect.raises(PortFailed, what="using a connection that the server has reset") as caught:
            for _ in range(10_000):
                await connection.write(b"x" * 65536)
            await connection.read()
        expect.equal(_errno(caught), errno.ECONNRESET, "the errno")
        expect.exited(await run(box, "true"))


@check("ports.unread", "a server that does not read makes the writer wait, and no other call", needs=NEEDS)
async def unread(context: Context) -> None:
    box = await context.sandbox()
    async with serving(box, "def serve(client):\n    held.append(client)\nheld = []\n"):
        async with await box.dial(_PORT) as connection:
            try:
                async with asyncio.timeout(1.0):
                    for _ in range(1000):
                        await connection.write(b"x" * 65536)
                raise expect.Broken("64 MB were written to a server that reads nothing")
            except TimeoutError:
                pass
            expect.exited(await run(box, "true"))
        expect.exited(await run(box, "true"))


@check("ports.many", "a hundred connections at a time do not mix", needs=NEEDS)
async def many(context: Context) -> None:
    box = await context.sandbox()

    async def talk(number: int) -> bytes:
        async with await box.dial(_PORT, timeout_s=30) as connection:
            await connection.write(b"%d" % number * 1000)
            await connection.end_input()
            return await _to_the_end(connection)

    async with serving(box, ECHO):
        answers = await asyncio.gather(*(talk(number) for number in range(_MANY)))
    expect.equal(answers, [b"%d" % number * 1000 for number in range(_MANY)], "the echoes")


@check("ports.listening", "the ports on which programs listen are listed", needs=NEEDS)
async def listening(context: Context) -> None:
    box = await context.sandbox()
    before = await box.listening_ports()
    async with serving(box, ECHO), serving(box, ECHO, port=8001, address="0.0.0.0"), await box.listen(8002):
        found = {(each.address, each.port) for each in await box.listening_ports()}
    expect.equal(before, [], "the ports of a new sandbox")
    expect.equal(found, {("127.0.0.1", _PORT), ("0.0.0.0", 8001)}, "the ports")


@check("ports.listen", "the host accepts connections of programs on a port of the sandbox", needs=NEEDS)
async def listen(context: Context) -> None:
    box = await context.sandbox()
    async with await box.listen(443, address="127.0.0.1") as listener:
        expect.equal(listener.local, ("127.0.0.1", 443), "where it listens")
        with expect.raises(PortFailed, what="listening on a port that is taken") as caught:
            await box.listen(443)
        expect.equal(_errno(caught), errno.EADDRINUSE, "the errno")
        caller = asyncio.create_task(run(box, script(CALL, port=443)))
        async with asyncio.timeout(30), await listener.accept() as connection:
            expect.equal(connection.local, ("127.0.0.1", 443), "where it was accepted")
            expect.equal(await _to_the_end(connection), b"from inside", "what the program sent")
            await connection.write(b"from outside")
            await connection.end_input()
            seen = await caller
        expect.exited(seen)
        expect.equal(seen.stdout, b"from outside\n", "what the program got")
    expect.true(not (await run(box, script(CALL, port=443))).ok, "a closed listener still takes connections")


@check("ports.datagrams", "the host exchanges datagrams with programs of the sandbox", needs=NEEDS)
async def datagrams(context: Context) -> None:
    box = await context.sandbox()
    async with await box.datagrams(53) as socket:
        caller = asyncio.create_task(run(box, script(ASK, port=53)))
        async with asyncio.timeout(30):
            data, sender = await socket.receive()
            expect.equal(data, b"question", "the datagram (one of 5,000 bytes before it is dropped)")
            await socket.send(b"answer", sender)
            seen = await caller
        expect.equal(seen.stdout, b"answer\n", "what the program got")


@check("ports.reset", "connections and listeners end with a reset", needs=(*NEEDS, Capability.RESET))
async def reset(context: Context) -> None:
    box = await context.sandbox()
    listener = await box.listen(8002)
    async with serving(box, ECHO):
        connection = await box.dial(_PORT)
        reading = asyncio.create_task(connection.read())
        await connection.write(b"")
        accepting = asyncio.create_task(listener.accept())
        await asyncio.sleep(0)
        await box.reset()
        for task in (reading, accepting):
            with expect.raises(SandboxReset, what="a call under way during a reset"):
                await task
    with expect.raises(PortFailed, what="dialling the server of before the reset"):
        await box.dial(_PORT)
    async with await box.listen(8002):
        pass


@check("ports.destroy", "connections end with the sandbox", needs=NEEDS)
async def destroy(context: Context) -> None:
    box = await context.sandbox()
    async with serving(box, ECHO):
        connection = await box.dial(_PORT)
        reading = asyncio.create_task(connection.read())
        await asyncio.sleep(0)
        await box.destroy()
        with expect.raises(DutyfreeError, what="reading from a connection of a destroyed sandbox"):
            await reading
        await connection.close()


@check("ports.neighbour", "the ports of a sandbox are not those of its neighbour", needs=NEEDS)
async def neighbour(context: Context) -> None:
    one, other = await context.sandbox(), await context.sandbox()
    async with serving(one, ECHO):
        with expect.raises(PortFailed, what="dialling a port of another sandbox") as caught:
            await other.dial(_PORT)
        expect.equal(_errno(caught), errno.ECONNREFUSED, "the errno")
        async with serving(other, SUMS), await other.dial(_PORT) as connection:
            await connection.end_input()
            expect.equal(
                (await _to_the_end(connection))[:32], hashlib.sha256().digest(), "the answer of its own server"
            )


async def _exactly(connection: Connection, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes and (more := await connection.read(size_bytes - len(data))):
        data += more
    return data


async def _to_the_end(connection: Connection) -> bytes:
    parts = []
    while data := await connection.read():
        parts.append(data)
    return b"".join(parts)


async def _is(action: Awaitable[object], stdout: bytes) -> bool:
    return getattr(await action, "stdout", None) == stdout


def _errno(caught: list[BaseException]) -> object:
    return getattr(caught[0], "errno", None)
