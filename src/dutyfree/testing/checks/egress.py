"""Egress by name: what programs of a sandbox reach, and what they are refused. Most of it is attacks."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Final

from dutyfree.contract import Sandbox
from dutyfree.egress.connector import Connector, Resolve
from dutyfree.egress.service import PROXY_ADDRESS, PROXY_PORT, EgressService
from dutyfree.model import Action, Capability, Egress, EgressRecord
from dutyfree.model.hostname import Address
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.EGRESS,)
NAME: Final = "allowed.test"
_MANY: Final = 1000
_TALK: Final = """
import base64, socket, sys
host, port = sys.argv[1], int(sys.argv[2])
for text in sys.argv[3:]:
    try:
        client = socket.create_connection((host, port), 20)
        client.sendall(base64.b64decode(text))
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while data := client.recv(65536):
            answer += data
    except OSError as error:
        answer = b"error: " + type(error).__name__.encode()
    print(base64.b64encode(answer).decode(), flush=True)
"""
_SWARM: Final = """
import resource, socket, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
try:
    for _ in range(int(sys.argv[3])):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex((sys.argv[1], int(sys.argv[2])))
        held.append(client)
except OSError:
    pass
print(len(held), flush=True)
import time
time.sleep(2)
"""
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Canary:
    """A server on the host's loopback that echoes, and knows what it was sent."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.heard: list[bytes] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Canary]:
        """Serve for the length of the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
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
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(box: Sandbox, egress: Egress, resolve: Resolve | None = None) -> AsyncIterator[EgressService]:
    """The egress of a sandbox, for the length of the block; without the host's own proxy."""
    if not (await run(box, "command -v python3")).ok:
        raise expect.NotRun("this check needs python3 in the sandbox")
    service = EgressService(egress, lambda rules: Connector(rules, resolve=resolve, environment={}))
    await service.open(box)
    try:
        yield service
    finally:
        await service.close()


async def talk(box: Sandbox, *requests: bytes, host: str = PROXY_ADDRESS, port: int = PROXY_PORT) -> list[bytes]:
    """What the proxy answers to each request, on a connection of its own."""
    words = [base64.b64encode(each).decode() for each in requests]
    seen = await box.run(Action(["python3", "-c", _TALK, host, str(port), *words], timeout_s=100))
    expect.exited(seen)
    return [base64.b64decode(line) for line in seen.stdout.splitlines()]


def connect(host: str, port: int, then: bytes = b"") -> bytes:
    """A request for a tunnel."""
    return f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode("latin-1") + then


def hello(name: str) -> bytes:
    """A TLS hello for the name."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


async def settled(service: EgressService, count: int) -> list[EgressRecord]:
    """The journal, once it has so many records that have ended."""

    async def complete() -> bool:
        return len([each for each in service.journal() if each.end != "open"]) >= count

    await expect.soon(complete, f"the journal has {len(service.journal())} records that have ended, not {count}")
    return service.journal()


@check("egress.carried", "an allowed host is reached by CONNECT, HTTP, SOCKS and by its name alone", needs=NEEDS)
async def carried(context: Context) -> None:
    box = await context.sandbox()
    async with Canary().serving() as canary:
        rules = [NAME, f"{NAME}:22"]
        async with serving(box, Egress(private=rules, hosts={NAME: f"127.0.0.1:{canary.port}"})) as service:
            http = f"GET http://{NAME}/x HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()
            socks = b"\x05\x01\x00\x05\x01\x00\x03" + bytes((len(NAME),)) + NAME.encode() + b"\x00\x16by socks"
            answers = await talk(box, connect(NAME, 22, b"by connect"), socks, http)
            expect.true(answers[0].endswith(b"\r\n\r\nby connect"), f"CONNECT was answered {answers[0]!r}")
            expect.true(answers[1].endswith(b"by socks"), f"SOCKS was answered {answers[1]!r}")
            expect.true(b"502" in answers[2][:20], f"an answer that is no HTTP was passed on: {answers[2]!r}")
            expect.true(
                any(each.startswith(b"GET /x HTTP/1.1\r\n") for each in canary.heard), "the request was not sent"
            )
            hows = ["connect", "socks", "http"]
            if not service.notes:
                expect.equal(await talk(box, b"by name", host=NAME, port=22), [b"by name"], "the echo of a direct one")
                hows.append("direct")
            records = await settled(service, len(hows))
            expect.equal([each.how for each in records], hows, "the journal")
            expect.equal((records[0].sent_bytes, records[0].received_bytes), (10, 10), "the bytes of CONNECT")


@check("egress.refused", "no other name, port or form of an address reaches the host's loopback", needs=NEEDS)
async def refused(context: Context) -> None:
    box = await context.sandbox()
    async with Canary().serving() as canary:
        port = canary.port
        hosts = [
            *("127.0.0.1", "localhost", "127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1."),
            *(
                "0.0.0.0",
                "[::1]",
                "[::ffff:127.0.0.1]",
                "[::ffff:7f00:1]",
                "[::127.0.0.1]",
                "[64:ff9b::7f00:1]",
                "[::]",
            ),
            *(f"{NAME}@127.0.0.1", f"127.0.0.1#{NAME}", "127.0.0.1%2e", "%31%32%37.0.0.1", f"127.0.0.1\\.{NAME}"),
            *(f"x.{NAME}", f"{NAME}.x", "169.254.169.254", "metadata.google.internal", NAME),
        ]
        requests = [connect(host, port, b"reached") for host in hosts]
        requests += [
            f"GET http://{host}:{port}/ HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode("latin-1") for host in hosts
        ]
        requests += [
            f"GET http://{NAME}:{port}/ HTTP/1.1\r\nHost: {NAME}\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode(),
            f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode(),
            b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2),
            b"\x05\x01\x00\x05\x01\x00\x04" + bytes(15) + b"\x01" + port.to_bytes(2),
            b"\x05\x01\x00\x05\x01\x00\x03\x09127.0.0.1" + port.to_bytes(2),
            b"\x04\x01" + port.to_bytes(2) + b"\x7f\x00\x00\x01\x00",
        ]
        # The allowed name leads to the canary, on port 443 alone.
        async with serving(box, Egress(private=[f"{NAME}:443"], hosts={NAME: f"127.0.0.1:{port}"})) as service:
            answers = await talk(box, *requests)
            for request, answer in zip(requests, answers, strict=True):
                got_in = (
                    answer.startswith(b"HTTP/1.1 200") or answer.startswith(b"\x05\x00\x05\x00") or b"reached" in answer
                )
                expect.true(not got_in, f"{request!r} was answered {answer!r}")
            records = await settled(service, len(requests))
            expect.true(not any(each.allowed for each in records), "a refused request is recorded as allowed")
        expect.equal(canary.connections, 0, "connections to the host's loopback")


@check("egress.rebinding", "an allowed name with a private address is refused, also if it changes", needs=NEEDS)
async def rebinding(context: Context) -> None:
    box = await context.sandbox()
    looked_up = 0

    async def resolve(name: str) -> list[Address]:
        nonlocal looked_up
        looked_up += 1
        odd = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "fd00:ec2::254")
        return [ip_address(odd[looked_up % len(odd)])]

    async with Canary().serving() as canary, serving(box, Egress(allow=[f"{NAME}:{canary.port}"]), resolve) as service:
        answers = await talk(box, *[connect(NAME, canary.port, b"reached")] * 14)
        expect.true(all(b"403" in each[:20] for each in answers), f"answers: {answers!r}")
        records = await settled(service, 14)
        expect.true(all(not each.allowed and "address" in each.rule for each in records), f"records: {records}")
        expect.equal((canary.connections, looked_up), (0, 14), "connections to the host, and lookups")


@check("egress.tls-name", "a TLS hello to another name than the tunnel's does not get through", needs=NEEDS)
async def tls_name(context: Context) -> None:
    box = await context.sandbox()
    async with Canary().serving() as canary:
        egress = Egress(private=[NAME, f"{NAME}:8443"], hosts={NAME: f"127.0.0.1:{canary.port}"})
        async with serving(box, egress) as service:
            other, own = hello("other.test"), hello(NAME)
            plain = f"GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n".encode()
            bad = [connect(NAME, 443, other), connect(NAME, 8443, other), connect(NAME, 443, plain)]
            await talk(box, *bad)
            expect.true(not any(each.allowed for each in await settled(service, 3)), "a hello to another name passed")
            expect.equal(canary.heard, [], "what the server heard")
            await talk(box, connect(NAME, 443, own))
            expect.equal(b"".join(canary.heard), own, "what the server heard of a hello to the right name")


@check("egress.swarm", "a thousand connections wait or are refused; the sandbox and a neighbour go on", needs=NEEDS)
async def swarm(context: Context) -> None:
    box, other = await context.sandbox(), await context.sandbox()
    async with serving(box, Egress(allow=[NAME], max_connections=8)) as service:
        program = ["python3", "-c", _SWARM, PROXY_ADDRESS, str(PROXY_PORT), str(_MANY)]
        async with box.stream(Action(program, timeout_s=60)) as stream:
            async for _ in stream:
                break
            expect.exited(await run(other, "true"))
            expect.exited(await run(box, "true"))
            expect.true(len(service._tasks) < 64, f"{len(service._tasks)} tasks serve 8 connections")
        answers = await talk(box, connect("refused.test", 443))
        expect.true(answers[0].startswith(b"HTTP/1.1 403"), f"afterwards, a request is answered {answers[0]!r}")


@check("egress.neighbour", "the proxy of a sandbox is no proxy for its neighbour", needs=NEEDS)
async def neighbour(context: Context) -> None:
    box, other = await context.sandbox(), await context.sandbox()
    async with Canary().serving() as canary, serving(box, Egress(private=[f"127.0.0.1:{canary.port}"])):
        request = connect("127.0.0.1", canary.port, b"reached")
        expect.true((await talk(box, request))[0].endswith(b"reached"), "the sandbox itself does not reach the host")
        expect.equal(await talk(other, request), [b"error: ConnectionRefusedError"], "what the neighbour gets")


@check("egress.ended", "after its end, and after a reset, programs reach nothing", needs=(*NEEDS, Capability.RESET))
async def ended(context: Context) -> None:
    box = await context.sandbox()
    async with Canary().serving() as canary:
        egress, request = Egress(private=[f"127.0.0.1:{canary.port}"]), connect("127.0.0.1", canary.port, b"reached")
        async with serving(box, egress):
            expect.true((await talk(box, request))[0].endswith(b"reached"), "the sandbox does not reach the host")
        expect.equal(await talk(box, request), [b"error: ConnectionRefusedError"], "after the end")
        async with serving(box, egress):
            await box.reset()
            expect.equal(await talk(box, request), [b"error: ConnectionRefusedError"], "after a reset")
