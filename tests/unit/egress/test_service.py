"""The service over real sockets of this machine's loopback: what is carried, refused and recorded."""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from ipaddress import IPv4Address, ip_address

import pytest

from dutyfree.egress import relay
from dutyfree.egress.connector import Connector
from dutyfree.egress.service import PROXY_ADDRESS, PROXY_PORT, EgressService
from dutyfree.model.egress import Egress
from dutyfree.model.hostname import Address
from dutyfree.testing.egress import hello, question, settled
from support.loopback_sandbox import LoopbackSandbox

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[int]:
    """A server on a free port of the host's loopback."""

    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    opened = await asyncio.start_server(whole, "127.0.0.1", 0)
    try:
        yield opened.sockets[0].getsockname()[1]
    finally:
        opened.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(head) + head)
    await writer.drain()


@asynccontextmanager
async def serving(egress: Egress, **options: object) -> AsyncIterator[tuple[EgressService, LoopbackSandbox]]:
    sandbox = LoopbackSandbox()
    options.setdefault("environment", {})
    service = EgressService(egress, lambda each: Connector(each, **options))  # type: ignore[arg-type]
    await service.open(sandbox)  # type: ignore[arg-type]
    try:
        yield service, sandbox
    finally:
        await service.close()


async def ask(sandbox: LoopbackSandbox, data: bytes, *, end: bool = False) -> bytes:
    """All that the proxy answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.tcp[PROXY_ADDRESS, PROXY_PORT])
    try:
        writer.write(data)
        if end:
            writer.write_eof()
        async with asyncio.timeout(10):
            return await reader.read(-1)
    finally:
        writer.close()
        await asyncio.sleep(0.05)  # the record is finished after the last byte


def resolving(*answers: str) -> Callable[[str], Awaitable[list[Address]]]:
    """A resolver that gives the next answer each time."""
    left = list(answers)

    async def resolve(name: str) -> list[Address]:
        return [ip_address(each) for each in left.pop(0).split()]

    return resolve


async def test_connect_carries_bytes_and_is_recorded() -> None:
    async with (
        server(echo) as port,
        serving(Egress(private=[f"echo.test:{port}"], hosts={"echo.test": "127.0.0.1"})) as (
            service,
            sandbox,
        ),
    ):
        request = b"CONNECT echo.test:%d HTTP/1.1\r\nHost: echo.test:%d\r\n\r\nhello" % (port, port)
        assert await ask(sandbox, request, end=True) == b"HTTP/1.1 200 Connection established\r\n\r\nhello"
        (record,) = service.journal()
        assert (record.name, record.port, record.how, record.allowed) == ("echo.test", port, "connect", True)
        assert (record.address, record.sent_bytes, record.received_bytes) == ("127.0.0.1", 5, 5)
        assert record.rule == f"private echo.test:{port}"
        assert record.end == "closed"


async def test_plain_http_is_one_request_with_the_checked_host() -> None:
    async with (
        server(page) as port,
        serving(Egress(private=["web.test"], hosts={"web.test": f"127.0.0.1:{port}"})) as (
            service,
            sandbox,
        ),
    ):
        request = b"GET http://web.test/x HTTP/1.1\r\nHost: web.test\r\nX: y\r\n\r\n"
        smuggled = b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n"
        answer = await ask(sandbox, request + smuggled)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close\r\n" in answer
        assert answer.endswith(b"GET /x HTTP/1.1\r\nhost: web.test\r\nx: y\r\nconnection: close\r\n\r\n")
        assert b"other.test" not in answer
        assert [(each.how, each.allowed) for each in service.journal()] == [("http", True)]


async def test_socks_carries_bytes() -> None:
    async with server(echo) as port, serving(Egress(private=[f"127.0.0.1:{port}"])) as (service, sandbox):
        request = b"\x05\x01\x00" + b"\x05\x01\x00\x01\x7f\x00\x00\x01" + port.to_bytes(2) + b"hello"
        assert await ask(sandbox, request, end=True) == b"\x05\x00" + b"\x05\x00\x00\x01" + bytes(6) + b"hello"
        assert [(each.how, each.name) for each in service.journal()] == [("socks", "127.0.0.1")]


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n", b"HTTP/1.1 403 "),
        (b"CONNECT echo.test:22 HTTP/1.1\r\nHost: echo.test:22\r\n\r\n", b"HTTP/1.1 403 "),
        (b"CONNECT 127.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1:443\r\n\r\n", b"HTTP/1.1 403 "),
        (b"CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n", b"HTTP/1.1 403 "),
        (b"CONNECT [::ffff:127.0.0.1]:443 HTTP/1.1\r\nHost: [::ffff:127.0.0.1]:443\r\n\r\n", b"HTTP/1.1 403 "),
        (b"CONNECT 0x7f.1:443 HTTP/1.1\r\nHost: 0x7f.1:443\r\n\r\n", b"HTTP/1.1 400 "),
        (b"CONNECT 2130706433:443 HTTP/1.1\r\nHost: 2130706433:443\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET http://echo.test@127.0.0.1/ HTTP/1.1\r\nHost: echo.test\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET http://echo.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET http://echo.test/ HTTP/1.1\nHost: echo.test\n\n", b"HTTP/1.1 400 "),
        (b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00\r\n\r\n", b"HTTP/1.1 400 "),
        (b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50", b"\x05\x00\x05\x02"),
        (b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x01\x00\x50", b"\x05\x00\x05\x07"),
        (b"\x05\x01\x02", b"\x05\xff"),
    ],
)
async def test_refusals_are_answered_and_recorded(request_: bytes, answer: bytes) -> None:
    async with serving(Egress(private=["echo.test"], hosts={"echo.test": "127.0.0.1"})) as (service, sandbox):
        assert (await ask(sandbox, request_)).startswith(answer)
        (record,) = service.journal()
        assert not record.allowed
        assert record.rule
        assert record.address == ""


@pytest.mark.parametrize(
    "answer", ["127.0.0.1", "10.0.0.1 192.168.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "0.0.0.0"]
)
async def test_an_allowed_name_with_a_private_address_is_refused(answer: str) -> None:
    async with serving(Egress(allow=["rebind.test"]), resolve=resolving(answer)) as (service, sandbox):
        request = b"CONNECT rebind.test:443 HTTP/1.1\r\nHost: rebind.test:443\r\n\r\n"
        assert b"403" in await ask(sandbox, request)
        (record,) = service.journal()
        assert (record.allowed, record.end) == (False, "refused")
        assert "address" in record.rule


async def test_the_checked_address_is_the_one_that_is_connected_to() -> None:
    """A name whose second answer would be another address: it is looked up once, and what was checked is used."""
    async with server(echo) as port:
        resolve = resolving("169.254.169.254 127.0.0.1", "127.0.0.2")
        async with serving(Egress(private=[f"rebind.test:{port}"]), resolve=resolve) as (service, sandbox):
            request = b"CONNECT rebind.test:%d HTTP/1.1\r\nHost: rebind.test:%d\r\n\r\nhello" % (port, port)
            assert (await ask(sandbox, request, end=True)).endswith(b"hello")
            (record,) = service.journal()
            assert (record.allowed, record.address) == (True, "127.0.0.1")
            assert await resolve("rebind.test") == [ip_address("127.0.0.2")]


async def test_a_hello_to_another_name_ends_the_tunnel() -> None:
    seen = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(-1))

    async with (
        server(listen) as port,
        serving(Egress(private=["a.test"], hosts={"a.test": f"127.0.0.1:{port}"})) as (
            service,
            sandbox,
        ),
    ):
        request = b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"
        for first in (hello("other.test"), hello(None), b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"):
            assert await ask(sandbox, request + first) == b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert [each.allowed for each in service.journal()] == [False, False, False]
        assert "other.test" in service.journal()[0].rule
        await ask(sandbox, request + hello("a.test"), end=True)
        assert seen == [b"", b"", b"", hello("a.test")] or [len(each) > 0 for each in seen] == [
            False,
            False,
            False,
            True,
        ]
        assert service.journal()[-1].allowed


async def test_rules_can_be_changed_and_close_what_they_no_longer_allow() -> None:
    async with server(echo) as port, serving(Egress(private=[f"127.0.0.1:{port}"])) as (service, sandbox):
        reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.tcp[PROXY_ADDRESS, PROXY_PORT])
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\nhello" % (port, port))
        await reader.readuntil(b"hello")
        service.set(Egress(private=[f"127.0.0.1:{port}"]))
        writer.write(b"again")
        await reader.readexactly(5)
        service.set(Egress())
        async with asyncio.timeout(5):
            assert await reader.read(-1) == b""
        writer.close()
        assert service.journal()[0].end == "closed by a change of the rules"
        assert b"403" in await ask(sandbox, b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\n" % port)


async def test_the_end_closes_work_that_has_not_begun() -> None:
    async with serving(Egress()) as (service, _):
        work = asyncio.sleep(60)
        service._spawn(work)
        await service.close()
        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


async def test_bytes_are_limited() -> None:
    async with (
        server(echo) as port,
        serving(Egress(private=[f"127.0.0.1:{port}"], max_bytes=1000)) as (service, sandbox),
    ):
        request = b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\n" % port
        await ask(sandbox, request + b"x" * 5000, end=True)
        assert "limit of 1000 bytes" in service.journal()[0].rule
        assert b"503" in await ask(sandbox, request)


async def test_a_quiet_connection_is_closed() -> None:
    async with (
        server(echo) as port,
        serving(Egress(private=[f"127.0.0.1:{port}"], idle_timeout_s=0.2)) as (service, sandbox),
    ):
        assert (await ask(sandbox, b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\nhello" % port)).endswith(b"hello")
        assert service.journal()[0].end == "idle"


async def test_a_slow_sender_is_cut_off() -> None:
    async with serving(Egress()) as (service, sandbox):
        service._front._head_timeout_s = 0.2
        assert b"408" in await ask(sandbox, b"GET http://a.test/ HTTP/1.1\r\n")
        assert "no whole request" in service.journal()[0].rule


async def test_a_slow_reader_costs_no_memory() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(bytes(65536))
            sent += 65536
            await writer.drain()

    async with server(flood) as port, serving(Egress(private=[f"127.0.0.1:{port}"])) as (_, sandbox):
        reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.tcp[PROXY_ADDRESS, PROXY_PORT], limit=65536)
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\n" % port)
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.5)
        before = sent
        await asyncio.sleep(0.3)
        assert sent == before
        assert sent < 64 * 1024**2
        writer.close()


async def test_a_server_that_is_not_there_or_does_not_answer_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        port = full.getsockname()[1]
        for _ in range(4):  # the kernel keeps one or two, and then drops further ones
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", 0)) as closed:
            nothing = closed.getsockname()[1]
        rules = Egress(private=[f"127.0.0.1:{port}", f"127.0.0.1:{nothing}"], connect_timeout_s=0.3)
        async with serving(rules) as (service, sandbox):
            assert b" 504 " in await ask(sandbox, b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\n" % port)
            assert b" 502 " in await ask(sandbox, b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\n" % nothing)
            ends = [each.end for each in service.journal()]
            assert ends == ["failed: no connection within 0.3 s", "failed: Connection refused"]


async def test_a_server_that_resets_ends_the_connection_of_a_silent_program() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with server(reset) as port, serving(Egress(private=[f"127.0.0.1:{port}"])) as (service, sandbox):
        answer = await ask(sandbox, b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\nx" % port)
        assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
        assert service.journal()[0].end == "failed: Connection reset by peer"
        assert not service._gate._open


async def test_a_program_can_send_after_the_server_has_ended_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LINGER_S", 0.3)
    heard = []

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        heard.append(await reader.read(-1))

    async with server(end_first) as port, serving(Egress(private=[f"127.0.0.1:{port}"])) as (service, sandbox):
        reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.tcp[PROXY_ADDRESS, PROXY_PORT])
        writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\n" % port)
        assert await reader.read(-1) == b"HTTP/1.1 200 Connection established\r\n\r\n"
        writer.write(b"late")
        await settled(service, 1)
        writer.close()
        assert (service.journal()[0].end, heard) == ("idle", [b"late"])


async def test_connections_beyond_the_limit_wait() -> None:
    most = now = 0

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1

    async with (
        server(count) as port,
        serving(Egress(private=[f"127.0.0.1:{port}"], max_connections=5)) as (service, sandbox),
    ):
        request = b"CONNECT 127.0.0.1:%d HTTP/1.0\r\n\r\n" % port
        answers = await asyncio.gather(*(ask(sandbox, request, end=True) for _ in range(50)))
        assert all(each.startswith(b"HTTP/1.1 200") for each in answers)
        assert most <= 5
        assert len(service.journal()) == 50


async def query(sandbox: LoopbackSandbox, name: str, kind: int = 1) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendto(sock, question(name, kind), ("127.0.0.1", sandbox.udp["127.0.0.1", 53]))
        async with asyncio.timeout(5):
            return await loop.sock_recv(sock, 4096)


async def test_the_resolver_gives_allowed_names_an_address_that_listens() -> None:
    async with (
        server(page) as port,
        serving(Egress(private=["web.test"], hosts={"web.test": f"127.0.0.1:{port}"})) as (
            service,
            sandbox,
        ),
    ):
        answer = await query(sandbox, "WEB.test")
        address = str(IPv4Address(answer[-4:]))
        assert address.startswith("127.64.")
        assert (address, 80) in sandbox.tcp
        assert (address, 443) in sandbox.tcp
        assert await query(sandbox, "web.test") != answer  # letters as they were asked
        assert (await query(sandbox, "web.test"))[-4:] == answer[-4:]
        assert (await query(sandbox, "web.test", 28))[6:8] == b"\0\0"
        reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.tcp[address, 80])
        writer.write(b"GET /x HTTP/1.1\r\nHost: web.test\r\n\r\n")
        assert b"GET /x HTTP/1.1\r\nhost: web.test" in await reader.read(-1)
        writer.close()
        assert [(each.how, each.name) for each in service.journal()] == [("direct", "web.test")]
        assert (await query(sandbox, "other.test"))[3] & 15 == 3
        assert [(each.how, each.name, each.allowed) for each in service.journal()][1:] == [("dns", "other.test", False)]
        assert sandbox.files.written["/etc/resolv.conf"].startswith(b"nameserver 127.0.0.1\n")


async def test_the_resolver_answers_over_tcp() -> None:
    async with serving(Egress(allow=["web.test"])) as (_, sandbox):
        reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.tcp["127.0.0.1", 53])
        asked = question("web.test")
        writer.write((len(asked).to_bytes(2) + asked) * 2)
        writer.write_eof()
        answers = await reader.read(-1)
        writer.close()
        assert answers.count(bytes((127, 64, 1, 1))) == 2


async def test_the_hosts_own_proxy_is_used() -> None:
    asked = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nearly ")
        await echo(reader, writer)

    async with server(proxy) as port:
        environment = {"HTTPS_PROXY": f"http://user:word@127.0.0.1:{port}", "NO_PROXY": ".direct.test"}
        egress = Egress(allow=["far.test:22", "printer:22", "metadata.internal:22"])
        async with serving(egress, environment=environment) as (service, sandbox):
            answer = await ask(sandbox, b"CONNECT far.test:22 HTTP/1.0\r\n\r\nhello", end=True)
            assert answer.endswith(b"early hello")
            assert asked[0].startswith(
                b"CONNECT far.test:22 HTTP/1.1\r\nhost: far.test:22\r\nproxy-authorization: Basic "
            )
            assert service.journal()[0].address == f"proxy 127.0.0.1:{port}"
            for name in (b"printer", b"metadata.internal"):
                assert b"403" in await ask(sandbox, b"CONNECT %s:22 HTTP/1.0\r\n\r\n" % name)
