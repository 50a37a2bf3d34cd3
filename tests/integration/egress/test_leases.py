"""Egress as part of a lease: pools, forks, resets, the end, secrets, and the client without await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import dutyfree
from dutyfree import Egress, InvalidRequest, LeaseLost, PoolOptions, Unsupported

CURL = "curl -sS -m 20 http://web.test/"


@asynccontextmanager
async def page() -> AsyncIterator[int]:
    """A server on the host's loopback that answers `hello`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def web(port: int) -> Egress:
    return Egress(private=["web.test"], hosts={"web.test": f"127.0.0.1:{port}"})


async def test_warm_sandboxes_serve_leases_with_and_without_egress() -> None:
    options = PoolOptions(sandboxes=1)
    async with page() as port, dutyfree.local(pool=options) as host:
        for _ in range(3):
            async with host.lease(network=web(port)) as box:
                assert (await box.run(CURL)).stdout == b"hello"
            async with host.lease() as box:
                assert (await box.run(CURL)).exit_code == 6  # no such host
                assert b"proxy" not in (await box.run("env")).stdout.lower()
                with pytest.raises(InvalidRequest, match="no egress"):
                    _ = box.egress
            async with host.lease(network=Egress()) as box:
                assert b"no rule allows it" in (await box.run(CURL)).stdout
                assert [each.name for each in box.egress.journal()] == ["web.test"]


async def test_forks_and_resets_have_it_too_and_it_ends_with_the_lease() -> None:
    async with page() as port, dutyfree.local() as host:
        async with host.lease(network=web(port), secrets={"TOKEN": "x"}) as box:
            egress = box.egress
            await box.reset()
            assert (await box.run(CURL)).stdout == b"hello"
            await egress.set(Egress())
            (fork,) = await box.fork(1)
            assert b"no rule allows it" in (await fork.run(CURL)).stdout  # the rules of that moment
            await fork.egress.set(web(port))
            assert (await fork.run(CURL)).stdout == b"hello"
            assert b"no rule allows it" in (await box.run(CURL)).stdout
            await box.reset()
            assert b"no rule allows it" in (await box.run(CURL)).stdout
            assert [each.allowed for each in egress.journal()] == [True, False, False]
            await fork.close()
        assert len(egress.journal()) == 3
        with pytest.raises(LeaseLost):
            await egress.set(web(port))


async def test_an_open_connection_ends_with_the_lease() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        await reader.read(-1)
        ended.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with dutyfree.local() as host:
        async with host.lease(network=Egress(private=[f"127.0.0.1:{port}"])) as box:
            request = f"CONNECT 127.0.0.1:{port} HTTP/1.0\\r\\n\\r\\n"
            line = f"exec 3<>/dev/tcp/127.64.0.1/3128; printf '{request}' >&3; sleep 60"
            running = asyncio.create_task(box.run(["bash", "-c", line]))
            await begun.wait()
        with pytest.raises(LeaseLost):
            await running
        async with asyncio.timeout(5):
            await ended.wait()
    server.close()


async def test_a_substrate_without_a_loopback_of_its_own_has_none() -> None:
    async with dutyfree.local("process") as host:
        with pytest.raises(Unsupported, match="egress"):
            await host.acquire(network=Egress())


def test_the_client_without_await() -> None:
    with dutyfree.sync.local() as host, host.lease(network=Egress(allow=["a.test"])) as box:
        assert b"no rule allows it" in box.run("curl -sS http://web.test/").stdout
        assert [each.name for each in box.egress.journal()] == ["web.test"]
        box.egress.set(Egress(deny=["web.test"]))
        assert b"deny web.test" in box.run("curl -sS http://web.test/").stdout
