"""The fixtures of swe-rex's own tests, which its source distribution leaves out: here, a server that runs already."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

TEST_API_KEY = os.environ["DUTYFREE_COMPAT_TOKEN"]
PORT = int(os.environ["DUTYFREE_COMPAT_PORT"])


class _Action(BashAction):
    timeout: float | None = 5


class _Command(Command):
    timeout: float | None = 5


@dataclass
class RemoteServer:
    port: int
    headers: dict[str, str]


@pytest.fixture
def remote_server() -> RemoteServer:
    return RemoteServer(PORT, {"X-API-Key": TEST_API_KEY})


@pytest.fixture
async def remote_runtime() -> AsyncIterator[RemoteRuntime]:
    runtime = RemoteRuntime(port=PORT, auth_token=TEST_API_KEY, timeout=10)
    # The tests call `python`, which a machine need not have under this name.
    await runtime.execute(
        Command(command="test -e /usr/bin/python || ln -s /usr/bin/python3 /usr/bin/python", shell=True)
    )
    yield runtime
    await runtime.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime: RemoteRuntime) -> RemoteRuntime:
    await remote_runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
    return remote_runtime
