"""The SWE-ReX face over cells, served on a port of this machine, and swe-rex's own client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext

import pytest
import uvicorn
from swerex.runtime.abstract import CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

import dutyfree
from dutyfree.server.access import StaticAccess
from dutyfree.server.listening import http_config
from dutyfree.server.swerex import Settings, SwerexApp

TOKENS = {"alice-token": "alice", "bob-token": "bob"}


class QuietServer(uvicorn.Server):
    def capture_signals(self) -> AbstractContextManager[None]:
        return nullcontext()  # signals are pytest's


@asynccontextmanager
async def served(host: dutyfree.LocalHost, settings: Settings) -> AsyncIterator[int]:
    """The port of a gateway for the host."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        face = SwerexApp(StaticAccess(host, TOKENS), settings)
        server = QuietServer(http_config(face))
        task = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


@pytest.fixture
async def host() -> AsyncIterator[dutyfree.LocalHost]:
    async with dutyfree.local(substrate="cell") as host:
        yield host


Gateway = Callable[..., Awaitable[int]]


@pytest.fixture
async def gateway(host: dutyfree.LocalHost) -> AsyncIterator[Gateway]:
    """Starts a gateway with settings, and gives its port."""
    async with AsyncExitStack() as stack:

        async def start(**settings: object) -> int:
            return await stack.enter_async_context(served(host, Settings(**settings)))  # type: ignore[arg-type]

        yield start


def client(port: int, token: str = "alice-token") -> RemoteRuntime:
    return RemoteRuntime(auth_token=token, port=port, timeout=10.0)


@pytest.fixture
async def runtime(gateway: Gateway) -> RemoteRuntime:
    return client(await gateway())


@pytest.fixture
async def session(runtime: RemoteRuntime) -> RemoteRuntime:
    """A runtime with the session `default`."""
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=20))
    return runtime
