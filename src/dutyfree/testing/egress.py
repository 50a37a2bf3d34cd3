"""What checks and probes of egress share: servers on the host's loopback, and programs that talk to the proxy."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from dutyfree.contract import Sandbox
from dutyfree.egress.connector import Connector, Resolve
from dutyfree.egress.service import PROXY_ADDRESS, PROXY_PORT, EgressService
from dutyfree.model import Action, Egress, EgressRecord
from dutyfree.testing import expect

NAME: Final = "allowed.test"
_LISTEN_ON_S: Final = 0.1
"""How long a server that has answered listens for what else was sent."""
_TALK: Final = """
import base64, socket, sys
host, port = sys.argv[1], int(sys.argv[2])
for text in sys.stdin.read().split():
    try:
        client = socket.create_connection((host, port), 10)
        client.sendall(base64.b64decode(text))
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while data := client.recv(65536):
            answer += data
    except OSError as error:
        answer = b"error: " + type(error).__name__.encode()
    print(base64.b64encode(answer).decode(), flush=True)
"""


class Canary:
    """A server on the host's loopback that knows what it was sent: it echoes, or gives one answer and closes."""

    def __init__(self, answer: bytes = b"") -> None:
        self._answer = answer
        self.port = 0
        self.connections = 0
        self.heard: list[bytes] = []
        """What was sent: each piece for itself from an echo, all of a connection together otherwise."""

    @asynccontextmanager
    async def serving(self, address: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Canary]:
        """Serve for the length of the block. Raises OSError where the host has no such address."""
        server = await asyncio.start_server(self._serve, address, port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                self.heard.append(data)
                writer.write(self._answer or data)
                await writer.drain()
                if self._answer:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LISTEN_ON_S):
                            while more := await reader.read(65536):
                                self.heard[-1] += more
                    break
        writer.close()


@asynccontextmanager
async def serving(box: Sandbox, egress: Egress, resolve: Resolve | None = None) -> AsyncIterator[EgressService]:
    """The egress of a sandbox, for the length of the block; without the host's own proxy. Raises NotRun."""
    if not (await box.run(Action("command -v python3"))).ok:
        raise expect.NotRun("this needs python3 in the sandbox")
    service = EgressService(egress, lambda rules: Connector(rules, resolve=resolve, environment={}))
    await service.open(box)
    try:
        yield service
    finally:
        await service.close()


async def talk(box: Sandbox, *requests: bytes, host: str = PROXY_ADDRESS, port: int = PROXY_PORT) -> list[bytes]:
    """What the proxy answers to each request, on a connection of its own. Raises Broken."""
    words = b"\n".join(map(base64.b64encode, requests))
    seen = await box.run(Action(["python3", "-c", _TALK, host, str(port)], stdin=words, timeout_s=80))
    expect.exited(seen)
    return [base64.b64decode(line) for line in seen.stdout.splitlines()]


def connect(host: str, port: int | str, then: bytes = b"") -> bytes:
    """A request for a tunnel."""
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() + then


def get(host: str, port: int | str, path: str = "/") -> bytes:
    """A request to an HTTP proxy."""
    return f"GET http://{host}:{port}{path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()


def socks(host: bytes, port: int, then: bytes = b"") -> bytes:
    """A SOCKS 5 greeting and request: 4 or 16 bytes are an address, all else is a name."""
    kinds = {4: b"\x01", 16: b"\x04"}
    target = kinds[len(host)] + host if len(host) in kinds else b"\x03" + bytes((len(host),)) + host
    return b"\x05\x01\x00\x05\x01\x00" + target + port.to_bytes(2) + then


def hello(name: str | None) -> bytes:
    """A TLS hello for the name, by OpenSSL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def question(name: str, kind: int = 1, *, flags: int = 0x0100, tail: bytes = b"", more: int = 0) -> bytes:
    """A question of DNS."""
    labels = b"".join(bytes((len(each),)) + each.encode() for each in name.split(".") if each)
    numbers = (7, flags, 1, 0, 0, more)
    return b"".join(each.to_bytes(2) for each in numbers) + labels + b"\0" + kind.to_bytes(2) + b"\0\1" + tail


async def settled(service: EgressService, count: int) -> list[EgressRecord]:
    """The journal, once it has so many records that have ended. Raises Broken."""

    async def complete() -> bool:
        return len([each for each in service.journal() if each.end != "open"]) >= count

    await expect.soon(complete, f"the journal has fewer than {count} records that have ended")
    return service.journal()
